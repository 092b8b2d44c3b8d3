"""The results of one task, as JSON and as tables: curves, how the entropy rises at nodes, the forks of each rule."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.intervals import LEVEL, Estimate, estimate_all
from rllib_arpo.evaluation.entropy.measures import (
    INITIAL,
    START,
    Curve,
    ForkRule,
    Node,
    deltas,
    entropy_curves,
    expected_forks,
    fork_rules,
    groups_of,
    nodes_of,
)
from rllib_arpo.evaluation.report import plain_console, plain_table
from rllib_arpo.record.question import PlacedTurn, RecordedQuestion

#: The quantiles of dH over nodes.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class EntropySettings:
    """The settings by which entropies are evaluated.

    Attributes:
        window: k.
        num_positions: of the curves, at most.
        normalization: the units of dH, a key of `core.entropy.ENTROPY_NORMALIZATIONS`.
        params: alpha, beta, tau and Z; `branching` is not used.
    """

    window: int
    num_positions: int
    normalization: str
    params: BranchingParams


@dataclass(frozen=True, slots=True)
class GroupRise:
    """The rises of the entropy at the nodes of one group; means are over questions, each by the mean of its nodes.

    Attributes:
        nodes: their number.
        rise_nats_per_token: of the window.
        delta: dH in units of the settings' normalization.
        share_positive: of nodes with dH > 0.
        delta_quantiles: of dH over the nodes, quantile -> value.
    """

    nodes: int
    rise_nats_per_token: Estimate
    delta: Estimate
    share_positive: Estimate
    delta_quantiles: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TaskEntropy:
    """The results of the command for one task.

    Attributes:
        questions: with all samples, including those without a turn.
        turns: of all samples, also of unfinished ones, by question, sample and round.
        nodes: [N]; `deltas` [N] are their dH from the initial baseline.
        rules: their forks (`expected_forks`); means are over questions, each by the mean of its nodes.
        vocab_size: V.
    """

    task: str
    questions: Sequence[RecordedQuestion]
    turns: Sequence[PlacedTurn]
    nodes: Sequence[Node]
    deltas: np.ndarray
    curves: Mapping[str, Curve]
    rises: Mapping[str, GroupRise]
    rules: Mapping[ForkRule, Mapping[str, Estimate]]
    vocab_size: int

    @property
    def num_questions(self) -> int:
        return len(self.questions)

    @property
    def num_samples(self) -> int:
        return sum(len(question.tree.trajectories) for question in self.questions)

    @property
    def num_masked(self) -> int:
        """Samples that a deadline, a broken tool, an error or the engine ended."""
        return sum(not t.counts for question in self.questions for t in question.tree.trajectories)


def task_entropy(
    task: str, questions: Sequence[RecordedQuestion], vocab_size: int, settings: EntropySettings
) -> TaskEntropy:
    """Computes the results of a task from its record."""
    turns = [turn for question in questions for turn in question.turns()]
    nodes = nodes_of(turns, settings.window)
    rises = deltas(nodes, INITIAL, settings.normalization, vocab_size)
    return TaskEntropy(
        task=task,
        questions=questions,
        turns=turns,
        nodes=nodes,
        deltas=rises,
        curves=entropy_curves(turns, settings.num_positions),
        rises=_rises(nodes, rises),
        rules={
            rule: _estimates(nodes, expected_forks(rule, nodes, settings.params, vocab_size))
            for rule in fork_rules(settings.normalization)
        },
        vocab_size=vocab_size,
    )


def _rises(nodes: Sequence[Node], rises: np.ndarray) -> dict[str, GroupRise]:
    """Group of nodes -> how the entropy rises there."""
    place = {id(node.turn): i for i, node in enumerate(nodes)}
    groups = groups_of(node.turn for node in nodes)
    return {
        name: _group_rise([nodes[place[id(turn)]] for turn in group], rises[[place[id(turn)] for turn in group]])
        for name, group in groups.items()
        if name != START
    }


def _group_rise(nodes: Sequence[Node], rises: np.ndarray) -> GroupRise:
    values = {"rise": np.array([node.rise for node in nodes]), "delta": rises, "positive": (rises > 0).astype(float)}
    found = _estimates(nodes, values)
    quantiles = np.quantile(rises, QUANTILES)
    return GroupRise(
        nodes=len(nodes),
        rise_nats_per_token=found["rise"],
        delta=found["delta"],
        share_positive=found["positive"],
        delta_quantiles=dict(zip(map(str, QUANTILES), quantiles.tolist(), strict=True)),
    )


def _estimates(nodes: Sequence[Node], values: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """The mean over questions, each by the mean of its nodes, with its interval over questions.

    Args:
        values: name -> [N].
    """
    questions = np.array([node.turn.question.facts.number for node in nodes])
    numbers = np.unique(questions)
    return estimate_all({name: np.array([v[questions == n].mean() for n in numbers]) for name, v in values.items()})


def as_json(found: TaskEntropy) -> dict[str, Any]:
    """The figures of a `TaskEntropy`, without its questions, turns and nodes."""
    return {
        "task": found.task,
        "questions": found.num_questions,
        "samples": found.num_samples,
        "masked_samples": found.num_masked,
        "turns": len(found.turns),
        "nodes": len(found.nodes),
        "curves": {name: _plain_curve(curve) for name, curve in found.curves.items()},
        "rises": {name: dataclasses.asdict(rise) for name, rise in found.rises.items()},
        "rules": [
            dataclasses.asdict(rule) | {name: dataclasses.asdict(mean) for name, mean in forks.items()}
            for rule, forks in found.rules.items()
        ],
    }


def _plain_curve(curve: Curve) -> dict[str, list[Any]]:
    half_width = [None if np.isnan(value) else value for value in curve.half_width.tolist()]
    counts = {"questions": curve.num_questions.tolist(), "turns": curve.num_turns.tolist()}
    return {"mean": curve.mean.tolist(), "half_width": half_width, **counts}


def print_report(found: Sequence[TaskEntropy], settings: EntropySettings, console: Console | None = None) -> None:
    """Prints the tables of all tasks; without a terminal, as plain text."""
    console = plain_console(console or Console())
    for task in found:
        console.print(f"{task.task}: {task.num_questions} questions, {task.num_samples} samples", highlight=False)
        unfinished = f"{task.num_masked} samples were not finished (deadline, broken tool, error, engine)."
        console.print(unfinished, highlight=False)
        if not task.nodes:
            console.print("No tool response was followed by a turn, so that nothing could rise.", highlight=False)
            continue
        console.print(_rises_table(task, settings))
        console.print(_rules_table(task))
    console.print(
        f"Means are over questions, each by the mean of its nodes; [low, high]: {LEVEL:.0%} interval of "
        "Student's t over questions. Rules: the budget of a question is not counted.",
        highlight=False,
        markup=False,
    )


def _rises_table(task: TaskEntropy, settings: EntropySettings) -> Table:
    rows = []
    for name, rise in task.rises.items():
        cells = [_cell(rise.rise_nats_per_token, "+.3f"), _cell(rise.delta, "+.3f"), _cell(rise.share_positive, ".3f")]
        rows.append([name, str(rise.nodes), *cells])
    return plain_table(["", "nodes", "rise (nats per token)", f"dH ({settings.normalization})", "dH > 0"], rows)


def _rules_table(task: TaskEntropy) -> Table:
    rows = [
        [rule.name, *(_cell(forks[name], ".3f") for name in ("children_per_node", "share_of_nodes_forked"))]
        for rule, forks in task.rules.items()
    ]
    return plain_table(["rule", "children per node", "nodes forked"], rows)


def _cell(estimate: Estimate, form: str) -> str:
    value = f"{estimate.value:{form}}"
    if estimate.low is None or estimate.low == estimate.high:
        return value
    return f"{value} \\[{estimate.low:{form}}, {estimate.high:{form}}]"
