"""Curves, rises and rules of turns by hand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS, running_delta
from rllib_arpo.core.rollout_history import EarlierQuestion, RolloutHistory
from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus, Trajectory
from rllib_arpo.evaluation.entropy.measures import (
    INITIAL,
    RUNNING,
    ForkRule,
    deltas,
    entropy_curve,
    entropy_curves,
    expected_forks,
    fork_rules,
    nodes_of,
)
from rllib_arpo.evaluation.entropy.summary import EntropySettings, as_json, print_report, task_entropy
from rllib_arpo.record.question import PlacedTurn, QuestionFacts, RecordedQuestion
from tests.helpers.trees import make_trajectory, make_tree, make_turn

V = 100


@dataclass(frozen=True)
class Spec:
    """A turn of a sample of a question, with these entropies; behind the python tool, unless it says otherwise."""

    number: int
    sample: int
    depth: int
    entropies: Sequence[float]
    tool: str = "python"


def questions(turns: Iterable[Spec], unfinished: Iterable[tuple[int, int]] = ()) -> list[RecordedQuestion]:
    """The questions that have these turns; of the samples (question, sample) in `unfinished` none counts."""
    cut = set(unfinished)
    own: dict[tuple[int, int], list[Spec]] = {sample: [] for sample in cut}
    for one in turns:
        own.setdefault((one.number, one.sample), []).append(one)
    return [
        RecordedQuestion(
            QuestionFacts("benchmark", 0, number, 1.0),
            make_tree([1], [_trajectory(sample, own[sample], cut) for sample in sorted(own) if sample[0] == number]),
            {},
            None,
            {},
        )
        for number in sorted({number for number, _ in own})
    ]


def _trajectory(sample: tuple[int, int], specs: list[Spec], cut: set[tuple[int, int]]) -> Trajectory:
    specs = sorted(specs, key=lambda one: one.depth)
    # The tool that precedes a turn is the one that the turn before it called.
    tools = [one.tool for one in specs[1:]]
    turns = [
        replace(
            make_turn([1] * len(one.entropies)),
            entropies=np.array(one.entropies, np.float32),
            tool_call=ToolCall(tools[i], ToolStatus.OK, 0.0) if i < len(tools) else None,
        )
        for i, one in enumerate(specs)
    ]
    ending = StopReason.DEADLINE if sample in cut else StopReason.ANSWER
    return make_trajectory(str(sample[1]), turns, stop_reason=ending)


def placed(turns: Iterable[Spec]) -> list[PlacedTurn]:
    return [one for question in questions(turns) for one in question.turns()]


def test_a_question_counts_once_however_many_turns_it_has():
    """Question 7 has three turns, of which two have a second token; question 9 has one turn of two tokens."""
    turns = [(7, np.array([1.0, 4.0])), (7, np.array([2.0, 6.0, 9.0])), (7, np.array([6.0])), (9, np.array([5.0, 1.0]))]
    curve = entropy_curve(turns, 3)
    assert curve.mean.tolist() == [4.0, 3.0, 9.0]  # (3 + 5) / 2, (5 + 1) / 2, 9
    assert curve.num_questions.tolist() == [2, 2, 1]
    assert curve.num_turns.tolist() == [4, 3, 1]
    # s / sqrt(2) of (3, 5) is 1, of (5, 1) it is 2; t of two questions is 12.706, and one question has no interval.
    assert curve.half_width[:2].tolist() == pytest.approx([12.7062, 2 * 12.7062])
    assert np.isnan(curve.half_width[2])
    assert entropy_curve(turns, 2).mean.tolist() == [4.0, 3.0]
    assert entropy_curve([], 2).mean.shape == (0,)


def test_groups_of_turns_by_tool_and_by_round():
    turns = [
        Spec(0, 0, 0, [1.0]), Spec(0, 0, 1, [2.0], "search"), Spec(0, 0, 2, [4.0]), Spec(1, 0, 0, [3.0]),
        Spec(1, 0, 1, [6.0]),
    ]  # fmt: skip
    means = {name: curve.mean.tolist() for name, curve in entropy_curves(placed(turns), 8).items()}
    assert means == {
        "start": [2.0],
        "after tools": [4.5],  # ((2 + 4) / 2 + 6) / 2
        "tool python": [5.0],
        "tool search": [2.0],
        "round 1": [4.0],
        "round 2": [4.0],
    }


TURNS = [
    Spec(0, 0, 0, [1.0, 1.0, 9.0]), Spec(0, 0, 1, [2.0, 3.0, 9.0]), Spec(0, 0, 2, [0.5]),
    Spec(0, 1, 0, [1.0]), Spec(0, 1, 1, [3.0, 3.0], "search"),
]  # fmt: skip


def test_nodes_compare_the_first_k_tokens_with_those_of_their_own_trajectory():
    nodes = nodes_of(placed(TURNS), window=2)
    assert [(n.after.tolist(), n.initial.tolist()) for n in nodes] == [
        ([2.0, 3.0], [1.0, 1.0]),
        ([0.5], [1.0, 1.0]),
        ([3.0, 3.0], [1.0]),
    ]
    assert [n.rise for n in nodes] == [1.5, -0.5, 2.0]
    assert deltas(nodes, INITIAL, "vocab", V).tolist() == pytest.approx([0.03, -0.005, 0.02])
    # After python there are 2.5 and 0.5 nats a token, 1.5 in the mean; after search there is one node.
    assert deltas(nodes, RUNNING, "vocab", V).tolist() == pytest.approx([0.02, -0.01, 0.0])
    assert deltas(nodes, RUNNING, "mean_log_vocab", V).tolist() == pytest.approx(np.array([1, -1, 0]) / np.log(V))


@pytest.mark.parametrize("normalization", ENTROPY_NORMALIZATIONS)
def test_the_running_rule_is_that_of_training(normalization):
    """The same history, kept by the driver and read by the sampler, gives the same dH."""
    nodes = nodes_of(placed(TURNS), window=2)
    history = RolloutHistory(9)
    for node in nodes:
        history.extend([EarlierQuestion({node.tool: [node.after.mean()]})])
    earlier = history.reference().by_tool
    expected = [running_delta(node.after, earlier[node.tool], V, normalization) for node in nodes]
    assert deltas(nodes, RUNNING, normalization, V).tolist() == pytest.approx(expected)


def test_what_each_rule_makes_of_them():
    nodes = nodes_of(placed(TURNS), window=2)
    params = BranchingParams(branch_width=2, branch_base_probability=0.5, branch_entropy_weight=10.0)
    threshold, running, probability = (
        {name: each.tolist() for name, each in expected_forks(rule, nodes, params, V).items()}
        for rule in (
            ForkRule(branching, baseline, "vocab")
            for branching, baseline in (("threshold", INITIAL), ("threshold", RUNNING), ("probability", INITIAL))
        )
    )
    assert threshold == {"children_per_node": [2.0, 0.0, 2.0], "share_of_nodes_forked": [1.0, 0.0, 1.0]}
    assert running == {"children_per_node": [2.0, 0.0, 0.0], "share_of_nodes_forked": [1.0, 0.0, 0.0]}
    # P = 0.5 + 10 dH is 0.8, 0.45, 0.7.
    assert probability["children_per_node"] == pytest.approx([1.6, 0.9, 1.4])
    assert probability["share_of_nodes_forked"] == pytest.approx([1 - 0.2**2, 1 - 0.55**2, 1 - 0.3**2])


def test_a_probability_is_cut_at_one():
    rule = ForkRule("probability", INITIAL, "vocab")
    made = expected_forks(rule, nodes_of(placed(TURNS), 2), BranchingParams(branch_entropy_weight=1000.0), V)
    assert made["children_per_node"].tolist() == [1.0, 0.0, 1.0]


def test_the_rules_are_the_thresholds_and_the_probability_in_all_units():
    name = next(iter(ENTROPY_NORMALIZATIONS))
    assert [rule.name for rule in fork_rules(name)] == [
        f"threshold, initial, {name}",
        f"threshold, running, {name}",
        f"probability, initial, {name}",
        f"probability, running, {name}",
        *(f"probability, initial, {unit}" for unit in ENTROPY_NORMALIZATIONS if unit != name),
    ]


def test_the_summary_of_a_task():
    """Two questions: at two of three nodes of the first one the entropy rises, and at none of the second's."""
    turns = [*TURNS, Spec(1, 0, 0, [2.0]), Spec(1, 0, 1, [1.0])]
    found = task_entropy(
        "squares", questions(turns[::-1], [(1, 0)]), V, EntropySettings(2, 8, "vocab", BranchingParams())
    )
    plain = as_json(found)
    assert {key: plain[key] for key in ("questions", "samples", "masked_samples", "turns", "nodes")} == {
        "questions": 2, "samples": 3, "masked_samples": 1, "turns": 7, "nodes": 4,
    }  # fmt: skip
    rise = found.rises["after tools"]
    assert (rise.nodes, rise.share_positive.value) == (4, pytest.approx(1 / 3))
    assert rise.share_positive.low < 1 / 3 < rise.share_positive.high
    assert rise.rise_nats_per_token.value == pytest.approx((1.0 - 1.0) / 2)
    assert rise.delta.value == pytest.approx((0.045 / 3 - 0.01) / 2)
    assert rise.delta_quantiles["0.5"] == pytest.approx((0.02 - 0.005) / 2)
    assert found.rises["tool search"].share_positive.value == 1.0
    assert list(found.rises) == ["after tools", "tool python", "tool search", "round 1", "round 2"]
    assert plain["rules"][0]["children_per_node"]["value"] == pytest.approx(1 / 3)
    assert plain["curves"]["round 2"] == {"mean": [0.5], "half_width": [None], "questions": [1], "turns": [1]}


def test_a_task_without_nodes():
    settings = EntropySettings(2, 8, next(iter(ENTROPY_NORMALIZATIONS)), BranchingParams())
    found = task_entropy("squares", questions([Spec(0, 0, 0, [1.0])]), V, settings)
    assert (found.nodes, found.rises, list(found.curves)) == ([], {}, ["start"])
    assert {rule["children_per_node"]["value"] for rule in as_json(found)["rules"]} == {None}


@pytest.mark.parametrize("turns", [[Spec(0, 0, 0, [1.0])], TURNS[:2]], ids=["without nodes", "with a node"])
def test_a_sample_without_a_turn_is_counted_and_told(turns, capsys):
    settings = EntropySettings(2, 8, "vocab", BranchingParams())
    found = task_entropy("squares", questions(turns, [(0, 1), (3, 0)]), V, settings)
    assert (found.num_questions, found.num_samples, found.num_masked) == (2, 3, 2)
    assert as_json(found)["masked_samples"] == 2
    print_report([found], settings)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        "squares: 2 questions, 3 samples",
        "2 samples were not finished (deadline, broken tool, error, engine).",
    ]
