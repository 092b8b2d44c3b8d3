"""Curves, rises and rules of turns by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS, running_delta
from rllib_arpo.core.rollout_history import EarlierQuestion, RolloutHistory
from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus
from rllib_arpo.evaluation.entropy import (
    INITIAL,
    RUNNING,
    EntropySettings,
    ForkRule,
    as_json,
    deltas,
    entropy_curve,
    expected_forks,
    fork_rules,
    groups_of,
    node_table,
    print_entropy,
    task_entropy,
)
from rllib_arpo.record.question import QuestionFacts, RecordedQuestion
from tests.helpers.trees import make_trajectory, make_tree, make_turn

V = 100
PARAMS = BranchingParams(branch_width=2, branch_base_probability=0.5, branch_entropy_weight=10.0)
SETTINGS = EntropySettings(window=2, num_positions=8, normalization="vocab", params=PARAMS)
#: A turn: the question, its sample, turns above, the tool that precedes it, and its entropies.
Spec = tuple[int, str, int, str, Sequence[float]]
TURNS: list[Spec] = [
    (0, "0", 0, "", [1.0, 1.0, 9.0]),
    (0, "0", 1, "python", [2.0, 3.0, 9.0]),
    (0, "0", 2, "python", [0.5]),
    (0, "1", 0, "", [1.0]),
    (0, "1", 1, "search", [3.0, 3.0]),
]


def table(turns: Sequence[Spec]) -> pd.DataFrame:
    found = pd.DataFrame(turns, columns=["question", "sample", "depth", "tool", "entropies"])
    return found.assign(entropies=found["entropies"].map(np.array))


def test_a_question_counts_once_however_many_turns_it_has():
    """Question 7 has three turns, of which two have a second token; question 9 has one turn of two tokens."""
    entropies = [[1.0, 4.0], [2.0, 6.0, 9.0], [6.0], [5.0, 1.0]]
    turns = pd.DataFrame({"question": [7, 7, 7, 9], "entropies": map(np.array, entropies)})
    curve = entropy_curve(turns, 3)
    assert curve.mean.tolist() == [4.0, 3.0, 9.0]  # (3 + 5) / 2, (5 + 1) / 2, 9
    assert curve.num_questions.tolist() == [2, 2, 1]
    assert curve.num_turns.tolist() == [4, 3, 1]
    # s / sqrt(2) of (3, 5) is 1, of (5, 1) it is 2; t of two questions is 12.706, and one question has no interval.
    assert curve.half_width[:2].tolist() == pytest.approx([12.7062, 2 * 12.7062])
    assert np.isnan(curve.half_width[2])
    assert entropy_curve(turns, 2).mean.tolist() == [4.0, 3.0]


def test_groups_of_turns_by_tool_and_by_round():
    turns = table([(0, "0", 0, "", [1.0]), (0, "0", 1, "search", [2.0]), (0, "0", 2, "python", [4.0]),
                   (1, "0", 0, "", [3.0]), (1, "0", 1, "python", [6.0])])  # fmt: skip
    means = {name: entropy_curve(own, 8).mean.tolist() for name, own in groups_of(turns).items()}
    assert means == {
        "start": [2.0],
        "after tools": [4.5],  # ((2 + 4) / 2 + 6) / 2
        "tool python": [5.0],
        "tool search": [2.0],
        "round 1": [4.0],
        "round 2": [4.0],
    }


def test_nodes_compare_the_first_k_tokens_with_those_of_their_own_trajectory():
    nodes = node_table(table(TURNS), V, SETTINGS)
    assert nodes["rise_nats_per_token"].tolist() == [1.5, -0.5, 2.0]
    assert nodes["delta"].tolist() == pytest.approx([0.03, -0.005, 0.02])
    # After python there are 2.5 and 0.5 nats a token, 1.5 in the mean; after search there is one node.
    assert deltas(nodes, ForkRule("", RUNNING, "vocab"), V).tolist() == pytest.approx([0.02, -0.01, 0.0])
    mean_units = deltas(nodes, ForkRule("", RUNNING, "mean_log_vocab"), V)
    assert mean_units.tolist() == pytest.approx(np.array([1, -1, 0]) / np.log(V))


@pytest.mark.parametrize("normalization", ENTROPY_NORMALIZATIONS)
def test_the_running_rule_is_that_of_training(normalization):
    """The same history, kept by the driver and read by the sampler, gives the same dH."""
    nodes = node_table(table(TURNS), V, SETTINGS)
    history, pairs = RolloutHistory(9), list(zip(nodes["tool"], nodes["after"], strict=True))
    history.extend(EarlierQuestion({tool: [after.mean()]}) for tool, after in pairs)
    earlier = history.reference().by_tool
    expected = [running_delta(after, earlier[tool], V, normalization) for tool, after in pairs]
    assert deltas(nodes, ForkRule("", RUNNING, normalization), V).tolist() == pytest.approx(expected)


def test_what_each_rule_makes_of_them():
    nodes = node_table(table(TURNS), V, SETTINGS)
    threshold, running, probability = (
        expected_forks(ForkRule(branching, baseline, "vocab"), nodes, V, SETTINGS)
        for branching, baseline in (("threshold", INITIAL), ("threshold", RUNNING), ("probability", INITIAL))
    )
    assert threshold["children_per_node"].tolist() == [2.0, 0.0, 2.0]
    assert threshold["share_of_nodes_forked"].tolist() == [1.0, 0.0, 1.0]
    assert running["children_per_node"].tolist() == [2.0, 0.0, 0.0]
    # P = 0.5 + 10 dH is 0.8, 0.45, 0.7.
    assert probability["children_per_node"].tolist() == pytest.approx([1.6, 0.9, 1.4])
    assert probability["share_of_nodes_forked"].tolist() == pytest.approx([1 - 0.2**2, 1 - 0.55**2, 1 - 0.3**2])


def test_the_rules_are_the_thresholds_and_the_probability_in_all_units():
    name, *others = ENTROPY_NORMALIZATIONS
    assert [rule.name for rule in fork_rules(name)] == [
        f"threshold, initial, {name}",
        f"threshold, running, {name}",
        f"probability, initial, {name}",
        f"probability, running, {name}",
        *(f"probability, initial, {unit}" for unit in others),
    ]


def question(number: int, *samples: Sequence[tuple[str, Sequence[float]]]) -> RecordedQuestion:
    """Of each sample its turns: the tool that precedes the turn, and its entropies. A sample without one was masked."""
    trajectories = []
    for i, sample in enumerate(samples):
        called = [*(tool for tool, _ in sample[1:]), None]
        turns = [
            replace(
                make_turn([1] * len(entropies)),
                entropies=np.array(entropies, np.float32),
                tool_call=tool and ToolCall(tool, ToolStatus.OK, 0.0),
            )
            for tool, (_, entropies) in zip(called, sample, strict=False)
        ]
        ending = StopReason.ANSWER if turns else StopReason.DEADLINE
        trajectories.append(make_trajectory(str(i), turns, stop_reason=ending))
    return RecordedQuestion(QuestionFacts("benchmark", 0, number, 1.0), make_tree([1], trajectories), {}, None, {})


def test_the_results_of_a_task(capsys):
    """Two questions: at two of three nodes of the first one the entropy rises, and at none of the second's."""
    samples = [[(tool, entropies) for *_, tool, entropies in TURNS[:3]]]
    samples += [[(tool, entropies) for *_, tool, entropies in TURNS[3:]], []]
    found = task_entropy("squares", [question(0, *samples), question(1, [("", [2.0]), ("python", [1.0])])], V, SETTINGS)
    plain = as_json(found)
    assert {key: plain[key] for key in ("questions", "samples", "masked_samples", "turns", "nodes")} == {
        "questions": 2, "samples": 4, "masked_samples": 1, "turns": 7, "nodes": 4,
    }  # fmt: skip
    assert list(plain["rises"]) == ["after tools", "tool python", "tool search", "round 1", "round 2"]
    rise = plain["rises"]["after tools"]
    share = rise["share_positive"]
    assert (rise["nodes"], share["value"]) == (4, pytest.approx(1 / 3))
    assert share["low"] < 1 / 3 < share["high"]
    assert rise["rise_nats_per_token"]["value"] == pytest.approx((1.0 - 1.0) / 2)
    assert rise["delta"]["value"] == pytest.approx((0.045 / 3 - 0.01) / 2)
    assert rise["delta_quantiles"][0.5] == pytest.approx((0.02 - 0.005) / 2)
    assert plain["rises"]["tool search"]["share_positive"]["value"] == 1.0
    assert plain["rules"][0]["children_per_node"]["value"] == pytest.approx(2 / 3)
    assert plain["curves"]["round 2"] == {"mean": [0.5], "half_width": [None], "questions": [1], "turns": [1]}
    print_entropy([found], SETTINGS)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        "squares: 2 questions, 4 samples",
        "1 samples did not finish (deadline, broken tool, error, engine).",
    ]
    assert [line.split()[:3] for line in shown if line.strip().startswith("tool")] == [
        ["tool", "python", "3"], ["tool", "search", "1"],
    ]  # fmt: skip


def test_a_task_without_nodes(capsys):
    found = task_entropy("squares", [question(0, [("", [1.0])])], V, SETTINGS)
    assert (found.counts["nodes"], found.rises, list(found.curves)) == (0, {}, ["start"])
    assert {rule["children_per_node"]["value"] for rule in as_json(found)["rules"]} == {None}
    print_entropy([found], SETTINGS)
    assert "No turn followed a tool response, so there is no rise to measure." in capsys.readouterr().out
