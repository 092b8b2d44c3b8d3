"""The number of suffixes of a node: the formula, its variances, and where both are taken from in a tree."""

import math

import numpy as np
import pytest

from rllib_arpo.core.fork_plan import (
    NodeGroup,
    best_suffixes,
    node_groups,
    planned_children,
    planned_suffixes,
    pooled_variances,
)
from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, Turn


def turn(num_tokens: int, tool: str | None = None, reward: float = 0.0) -> Turn:
    tokens, nothing = np.zeros(num_tokens, np.int32), np.zeros(0, np.int32)
    called = ToolCall(tool, ToolStatus.OK, 0.1) if tool else None
    return Turn(tokens, tokens, tokens, nothing, tokens, called, reward=reward)


def test_the_nodes_of_a_tree_by_hand():
    """ "0.0" and "0.2" are suffixes of the first node of "0"; "0.0.0" begins further down, and "0.1" is masked."""
    answered, failed = StopReason.ANSWER, StopReason.ENGINE_FAILURE
    trajectories = (
        Trajectory("0", (turn(3, "search", 0.5), turn(4, "python"), turn(5, None, 1.0)), answered),
        Trajectory("1", (turn(6, "search"), turn(7, None, 2.0)), answered),
        Trajectory("0.0", (turn(8, "search"), turn(9)), answered, parent="0", num_inherited_turns=1),
        Trajectory("0.1", (turn(1),), failed, parent="0", num_inherited_turns=1),
        Trajectory("0.2", (turn(2, None, 4.0),), answered, parent="0", num_inherited_turns=1),
        Trajectory("0.0.0", (turn(1),), answered, parent="0.0", num_inherited_turns=2),
        Trajectory("2", (turn(1, "python"), turn(1, None, 3.0)), answered, topped_up=True),
        Trajectory("3", (turn(1, "python"), turn(1)), failed, topped_up=True),
    )
    assert node_groups(QuestionTree("q", np.zeros(2, np.int32), trajectories)) == (
        NodeGroup(
            "search",
            1,
            [[1.5, 0.5, 4.5], [2.0]],
            {"tool_calls": [1, 1], "generated_tokens": [3, 6]},
            {"tool_calls": [1, 1, 0, 0], "generated_tokens": [9, 17, 2, 7]},
        ),
        NodeGroup(
            "python",
            2,
            [[1.5]],
            {"tool_calls": [2], "generated_tokens": [7]},
            {"tool_calls": [0], "generated_tokens": [5]},
        ),
        NodeGroup(
            "python",
            1,
            [[3.0]],
            {"tool_calls": [1], "generated_tokens": [1]},
            {"tool_calls": [0], "generated_tokens": [1]},
        ),
    )


#: Squares within: 2 of 1 degree of freedom, and 6 of 4. Between: 2 * 1 + 1 * 4 and 3 * 1 + 3 * 1, of 1 each.
FIRST, SECOND = [[0.0, 2.0], [4.0]], [[10.0, 10.0, 13.0], [9.0, 9.0, 9.0]]


def test_pooled_variances_by_hand():
    within, between = pooled_variances([FIRST, SECOND])
    assert within == pytest.approx(8 / 5)
    assert between == pytest.approx((12 - 2 * 8 / 5) / ((3 - 5 / 3) + (6 - 18 / 6)))
    # A question of one node tells about suffixes alone, and how hard a question is does not count.
    easier = [[value + 99.0 for value in node] for node in SECOND]
    assert pooled_variances([FIRST, easier, [[5.0, 5.0]]]) == pytest.approx((8 / 6, (12 - 2 * 8 / 6) / (13 / 3)))


@pytest.mark.parametrize("questions", [[], [[[1.0, 0.0]]], [[[1.0], [0.0]]], [[[0.1] * 3, [0.1] * 7], [[0.7] * 3]]])
def test_no_variances_without_two_suffixes_two_nodes_and_returns_that_differ(questions):
    assert pooled_variances(questions) is None


def drawn_questions(number: int, num_nodes: int, rng: np.random.Generator, variances: tuple[float, float]) -> list:
    """Normal returns of nodes with 1 to 8 suffixes; questions are far apart."""
    within, between = variances
    return [
        [
            rng.normal(mean, math.sqrt(within), rng.integers(1, 9)).tolist()
            for mean in rng.normal(rng.normal(0, 9), math.sqrt(between), num_nodes)
        ]
        for _ in range(number)
    ]


@pytest.mark.parametrize(("num_nodes", "variances"), [(2, (4.0, 1.0)), (5, (0.2, 2.0))])
def test_variances_of_many_questions_are_the_true_ones(num_nodes, variances):
    questions = drawn_questions(5000, num_nodes, np.random.default_rng(0), variances)
    assert pooled_variances(questions) == pytest.approx(variances, rel=0.06)


def test_few_questions_tell_little():
    """The documentation's numbers: of 2 nodes with 1 or 8 suffixes, true means from beta(0.7, 0.7), equal costs."""
    rng = np.random.default_rng(1)
    quantiles = {}
    for number in (8, 32):
        found = []
        for _ in range(400):
            nodes = [[(rng.random(rng.choice([1, 8])) < rng.beta(0.7, 0.7)) * 1.0 for _ in "01"] for _ in range(number)]
            found.append(best_suffixes(3, 3, *pooled_variances(nodes)))
        quantiles[number] = np.quantile(found, [0.1, 0.9])
    assert best_suffixes(3, 3, 0.146, 0.104) == pytest.approx(1.18, abs=0.01)
    assert quantiles[8] == pytest.approx([0.7, 3.4], rel=0.15)
    assert quantiles[32] == pytest.approx([0.9, 1.6], rel=0.1)


def variance_at_equal_cost(suffixes: int, costs: tuple[float, float], variances: tuple[float, float]) -> float:
    """Of the mean over as many nodes as a cost of 240 pays, simulated."""
    (prefix_cost, suffix_cost), (within, between) = costs, variances
    nodes = int(240 / (prefix_cost + suffixes * suffix_cost))
    rng = np.random.default_rng(0)
    of_nodes = rng.normal(0, math.sqrt(between), (4000, nodes, 1))
    return float((of_nodes + rng.normal(0, math.sqrt(within), (4000, nodes, suffixes))).mean((1, 2)).var())


@pytest.mark.parametrize(
    ("costs", "variances", "best"),
    [((4.0, 1.0), (4.0, 1.0), 4.0), ((1.0, 1.0), (4.0, 1.0), 2.0), ((1.0, 4.0), (1.0, 4.0), 0.25)],
)
def test_the_planned_number_has_the_least_variance_at_equal_cost(costs, variances, best):
    simulated = {m: variance_at_equal_cost(m, costs, variances) for m in (1, 2, 4, 8)}
    assert best_suffixes(*costs, *variances) == best
    assert min(simulated, key=simulated.get) == 1 + planned_children(best, 99)


def test_the_extremes():
    assert best_suffixes(2.0, 3.0, 1.0, 0.0) == math.inf
    assert best_suffixes(2.0, 3.0, 0.0, 1.0) == 0.0
    children = [planned_children(m, 7) for m in (0.0, 1.49, 1.5, 2.49, 2.5, 7.9, 8.6, math.inf)]
    assert children == [0, 0, 1, 1, 2, 7, 7, 7]


def test_every_tool_and_depth_has_its_plan():
    def group(tool: str, depth: int, returns: list) -> NodeGroup:
        prefix = {"tool_calls": [depth] * len(returns), "generated_tokens": [9, 7]}
        suffix = {"tool_calls": [0] * sum(map(len, returns)), "generated_tokens": [2]}
        return NodeGroup(tool, depth, returns, prefix, suffix)

    questions = [[group("search", 3, FIRST), group("search", 1, FIRST)], [group("search", 3, SECOND)]]
    questions += [[group("python", 3, [[1.0], [2.0]])]]
    # Below "search" at depth 1: within 2, between (6 - 2) / (4 / 3) = 3. Suffixes without a call cost 1.
    ratio = 8 / 5 / ((12 - 16 / 5) / (13 / 3))
    expected = {("search", 3): math.sqrt(3 * ratio), ("search", 1): math.sqrt(2 / 3)}
    assert planned_suffixes(questions, "tool_calls") == pytest.approx(expected)
    tokens = {("search", 3): math.sqrt(4 * ratio), ("search", 1): math.sqrt(4 * 2 / 3)}
    assert planned_suffixes(questions, "generated_tokens") == pytest.approx(tokens)
