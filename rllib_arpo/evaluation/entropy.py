"""Measures how unsure a model is: entropy by token, its rise after tool responses, and what each rule would fork.

The tables have a row for each turn. A node is a tool response after which the trajectory went on; its row is that of
the next turn. Each question enters a mean once, with the mean of its rows, because its samples are not independent.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rllib_arpo.core.branching import BRANCHING_RULES, BranchingParams, NodeEvidence, decides_by_p
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS, entropy_delta, running_delta
from rllib_arpo.core.intervals import LEVEL, Estimate, estimate_all, half_width
from rllib_arpo.core.rollout_history import entropy_levels
from rllib_arpo.core.tree import NO_TOOL
from rllib_arpo.evaluation.report import cell, plain_console, plain_table
from rllib_arpo.record.question import RecordedQuestion

#: Groups of turns: after the prompt, and after any tool response. Further groups are "tool NAME" and "round 1".
START, AFTER_TOOLS = "start", "after tools"
#: The baselines of dH: the trajectory's own first tokens (the paper), or the mean after responses of the same tool.
INITIAL, RUNNING = "initial", "running"
#: Columns of which a group of nodes has the mean: the rise over the window, dH, and whether dH > 0.
MEANS = ("rise_nats_per_token", "delta", "share_positive")
#: Columns of what a rule would fork.
FORKS = ("children_per_node", "share_of_nodes_forked")
#: The quantiles of dH over nodes.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean entropy by position in a turn, up to the end of the longest turn.

    Attributes:
        mean: [P] nats.
        half_width: [P] nats, half of the 95 % t interval over questions; NaN with fewer than two questions.
        num_questions, num_turns: [P], how many questions and turns are long enough.
    """

    mean: np.ndarray
    half_width: np.ndarray
    num_questions: np.ndarray
    num_turns: np.ndarray


def entropy_curve(turns: pd.DataFrame, num_positions: int) -> Curve:
    """The curve of turns over their first `num_positions` tokens.

    `mean_p = 1/|Q_p| sum_q m_qp`, where m_qp is the mean of H_p over the turns of question q that have more than p
    tokens, and Q_p are the questions with such a turn; `half_width_p = t s_p / sqrt(|Q_p|)`, s_p the standard deviation
    of m_qp over Q_p (ddof = 1).

    Args:
        turns: the columns "question" and "entropies" ([n] nats).
    """
    cut = [entropies[:num_positions] for entropies in turns["entropies"]]
    padded = np.full((len(cut), max(map(len, cut), default=0)), np.nan)
    for values, entropies in zip(padded, cut, strict=True):
        values[: len(entropies)] = entropies
    by_question = pd.DataFrame(padded).groupby(turns["question"].to_numpy()).mean()
    count = by_question.count().to_numpy()
    return Curve(
        mean=by_question.mean().to_numpy(),
        half_width=half_width(by_question.std().to_numpy(), count),
        num_questions=count,
        num_turns=np.isfinite(padded).sum(axis=0),
    )


@dataclass(frozen=True, slots=True)
class ForkRule:
    """A rule of `core.branching` with the baseline and the units of its dH."""

    branching: str
    baseline: str
    normalization: str

    @property
    def name(self) -> str:
        return f"{self.branching}, {self.baseline}, {self.normalization}"


def fork_rules(normalization: str) -> list[ForkRule]:
    """All rules that use the entropy, with both baselines, in units of `normalization`; "probability" in all units."""
    rules = filter(decides_by_p, BRANCHING_RULES)
    own = [ForkRule(name, baseline, normalization) for name in rules for baseline in (INITIAL, RUNNING)]
    others = [unit for unit in ENTROPY_NORMALIZATIONS if unit != normalization]
    return own + [ForkRule("probability", INITIAL, unit) for unit in others]


@dataclass(frozen=True, slots=True)
class EntropySettings:
    """The settings of the analysis.

    Attributes:
        window: k.
        num_positions: the curves have at most this many positions.
        normalization: the units of dH, a key of `core.entropy.ENTROPY_NORMALIZATIONS`.
        params: alpha, beta, tau and Z; the analysis ignores `branching`.
    """

    window: int
    num_positions: int
    normalization: str
    params: BranchingParams


@dataclass(frozen=True, slots=True)
class TaskEntropy:
    """The results of the command for one task.

    Attributes:
        counts: the numbers of questions, samples, samples that do not count, turns and nodes.
        nodes: the table from `node_table`.
        curves: group -> the curve of its turns.
        rises: group -> the number of its nodes, the means of `MEANS`, and the quantiles of dH.
        rules: rule -> its mean children per node and share of nodes forked, if there were no budget.
    """

    task: str
    counts: Mapping[str, int]
    nodes: pd.DataFrame
    curves: Mapping[str, Curve]
    rises: Mapping[str, Mapping[str, Any]]
    rules: Mapping[ForkRule, Mapping[str, Estimate]]


def task_entropy(
    task: str, questions: Sequence[RecordedQuestion], vocab_size: int, settings: EntropySettings
) -> TaskEntropy:
    """Computes the results of a task from its record."""
    turns = turn_table(questions)
    nodes = node_table(turns, vocab_size, settings)
    samples = [sample for question in questions for sample in question.tree.trajectories]
    counts = {
        "questions": len(questions),
        "samples": len(samples),
        "masked_samples": sum(not sample.counts for sample in samples),
        "turns": len(turns),
        "nodes": len(nodes),
    }
    return TaskEntropy(
        task=task,
        counts=counts,
        nodes=nodes,
        curves={name: entropy_curve(own, settings.num_positions) for name, own in groups_of(turns).items()},
        rises={name: _rise(own) for name, own in groups_of(nodes).items()},
        rules={
            rule: _estimates(expected_forks(rule, nodes, vocab_size, settings), FORKS)
            for rule in fork_rules(settings.normalization)
        },
    )


def turn_table(questions: Iterable[RecordedQuestion]) -> pd.DataFrame:
    """The turns of benchmark questions that have an entropy; these questions have no forks.

    The column "tool" names the tool whose response precedes the turn.
    """
    rows = [
        (question.facts.number, turn.trajectory.agent_id, turn.depth, turn.after_tool or NO_TOOL, turn.turn.entropies)
        for question in questions
        for turn in question.turns()
        if len(turn.turn.entropies)
    ]
    return pd.DataFrame(rows, columns=["question", "sample", "depth", "tool", "entropies"])


def groups_of(turns: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Group -> its turns, in the order `START`, `AFTER_TOOLS`, tools, rounds, without empty groups."""
    later = turns[turns["depth"] > 0]
    groups = {START: turns[turns["depth"] == 0], AFTER_TOOLS: later}
    groups |= {f"tool {tool}": own for tool, own in later.groupby("tool")}
    groups |= {f"round {depth}": own for depth, own in later.groupby("depth")}
    return {name: own for name, own in groups.items() if len(own)}


def node_table(turns: pd.DataFrame, vocab_size: int, settings: EntropySettings) -> pd.DataFrame:
    """The nodes of a `turn_table`, with more columns.

    "after" and "initial" are the windows of k tokens after the response (H_t) and at the start of the trajectory
    (H_initial). The columns of `MEANS` compare them: their dH has the initial baseline.
    """
    windows = turns.assign(after=[entropies[: settings.window] for entropies in turns["entropies"]])
    initial = windows[windows["depth"] == 0].set_index(["question", "sample"])["after"].rename("initial")
    nodes = windows[windows["depth"] > 0].join(initial, on=["question", "sample"])
    pairs = zip(nodes["after"], nodes["initial"], strict=True)
    rise = [float((after[: len(first)].astype(float) - first[: len(after)]).mean()) for after, first in pairs]
    delta = deltas(nodes, ForkRule("", INITIAL, settings.normalization), vocab_size)
    return nodes.assign(rise_nats_per_token=rise, delta=delta, share_positive=delta > 0)


def deltas(nodes: pd.DataFrame, rule: ForkRule, vocab_size: int) -> np.ndarray:
    """dH of every node, [N], with the baseline and the units of a rule.

    `INITIAL`: `normalize(H_t - H_initial)` (`core.entropy.entropy_delta`). `RUNNING`: `normalize(H_t - b)`
    (`core.entropy.running_delta`), where b is the mean over all nodes after the same tool, in nats per token: the
    running baseline after all these nodes.
    """
    if rule.baseline == INITIAL:
        pairs = zip(nodes["after"], nodes["initial"], strict=True)
        return np.array([entropy_delta(after, initial, vocab_size, rule.normalization) for after, initial in pairs])
    levels = nodes["after"].map(np.mean).groupby(nodes["tool"]).apply(list)
    means = entropy_levels([levels.to_dict()]).by_tool
    pairs = zip(nodes["after"], nodes["tool"], strict=True)
    return np.array([running_delta(after, means[tool], vocab_size, rule.normalization) for after, tool in pairs])


def expected_forks(rule: ForkRule, nodes: pd.DataFrame, vocab_size: int, settings: EntropySettings) -> pd.DataFrame:
    """The columns of `FORKS` if the rule decides each node alone: expected children, probability of at least one.

    The column "question" stays.
    """
    chance, width = BRANCHING_RULES[rule.branching].chance, settings.params.branch_width
    assert chance is not None  # True for all of `fork_rules`.
    rises = deltas(nodes, rule, vocab_size)
    child = np.array([chance(NodeEvidence(float(rise)), settings.params) for rise in rises])
    return nodes[["question"]].assign(children_per_node=width * child, share_of_nodes_forked=1 - (1 - child) ** width)


def _rise(nodes: pd.DataFrame) -> dict[str, Any]:
    quantiles = nodes["delta"].quantile(list(QUANTILES)).to_dict()
    return {"nodes": len(nodes), **_estimates(nodes, MEANS), "delta_quantiles": quantiles}


def _estimates(nodes: pd.DataFrame, columns: Sequence[str]) -> dict[str, Estimate]:
    """The mean of each column with its interval over questions; a question enters with the mean of its nodes."""
    means = nodes.groupby("question")[list(columns)].mean()
    return estimate_all({name: means[name].to_numpy() for name in columns})


def as_json(found: TaskEntropy) -> dict[str, Any]:
    """The results as JSON, without the table of nodes."""
    return {
        "task": found.task,
        **found.counts,
        "curves": {name: _plain_curve(curve) for name, curve in found.curves.items()},
        "rises": {name: _plain(rise) for name, rise in found.rises.items()},
        "rules": [dataclasses.asdict(rule) | _plain(forks) for rule, forks in found.rules.items()],
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dataclasses.asdict(value) if isinstance(value, Estimate) else value for name, value in values.items()}


def _plain_curve(curve: Curve) -> dict[str, list[Any]]:
    half = [None if np.isnan(value) else value for value in curve.half_width.tolist()]
    return {
        "mean": curve.mean.tolist(),
        "half_width": half,
        "questions": curve.num_questions.tolist(),
        "turns": curve.num_turns.tolist(),
    }


def print_entropy(found: Sequence[TaskEntropy], settings: EntropySettings) -> None:
    """Prints the tables of all tasks, as plain text if there is no terminal."""
    console = plain_console()
    for task in found:
        counts = task.counts
        print(f"{task.task}: {counts['questions']} questions, {counts['samples']} samples")
        print(f"{counts['masked_samples']} samples did not finish (deadline, broken tool, error, engine).")
        if not counts["nodes"]:
            print("No turn followed a tool response, so there is no rise to measure.")
            continue
        forms = ("+.3f", "+.3f", ".3f")
        rises = [
            [name, str(rise["nodes"]), *(cell(rise[mean], form) for mean, form in zip(MEANS, forms, strict=True))]
            for name, rise in task.rises.items()
        ]
        headers = ["", "nodes", "rise (nats per token)", f"dH ({settings.normalization})", "dH > 0"]
        console.print(plain_table(headers, rises))
        rules = [[rule.name, *(cell(mean, ".3f") for mean in forks.values())] for rule, forks in task.rules.items()]
        console.print(plain_table(["rule", "children per node", "nodes forked"], rules))
    print(
        f"Each question enters a mean once, with the mean of its nodes; [low, high]: {LEVEL:.0%} interval of Student's "
        "t over questions. The rules decide here without a budget."
    )
