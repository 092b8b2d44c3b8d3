"""What the first batch says before the first update, of literal questions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rllib_arpo.core.figures import ExaminedNode
from rllib_arpo.core.tree import ForkDecision, QuestionTree
from rllib_arpo.tracking.first_batch import first_batch_line, first_batch_warnings
from tests.helpers.trees import make_trajectory, make_tree, make_turn


@dataclass(frozen=True)
class Asked:
    """A question's tree, and its tool responses that were examined."""

    tree: QuestionTree
    nodes: tuple[ExaminedNode, ...]


def asked(
    initial: str,
    others: str = "",
    forked: str = "",
    entropies: tuple[float, ...] = (0.2, 0.4),
    pays: Sequence[float] = (),
) -> Asked:
    """A question whose trajectories are right ("1") or wrong ("0"), and whose tool responses fork or do not.

    A right trajectory is paid 1, a wrong one 0, unless `pays` says which; the responses have these entropies in turn.
    Of `others` as many as responses fork are forks, and the rest top-ups.
    """
    num_forks = forked.count("1")
    names = [*map(str, range(len(initial))), *(f"0.{i}" for i in range(num_forks))]
    names += [str(len(initial) + i) for i in range(len(others) - num_forks)]
    turns = [make_turn([1], [2]), make_turn([1])]
    trajectories = [
        replace(
            make_trajectory(name, turns["." in name :], float(paid), num_inherited_turns=int("." in name)),
            accuracy=float(mark),
            topped_up="." not in name and int(name) >= len(initial),
        )
        for name, mark, paid in zip(names, initial + others, pays or initial + others, strict=False)
    ]
    nodes = tuple(
        ExaminedNode("search", entropies[i % len(entropies)], True, ForkDecision(0.3, 0.1, 0.52, True, int(mark)),
                     np.zeros(1, np.int32), 1)
        for i, mark in enumerate(forked)
    )  # fmt: skip
    return Asked(make_tree([0], trajectories), nodes)


def parts(questions: Sequence[Asked]) -> tuple[list[QuestionTree], list[ExaminedNode]]:
    return [one.tree for one in questions], [node for one in questions for node in one.nodes]


def test_the_line_of_trees():
    """Of the roots 1, 0, 0 and 0 of three questions with two roots, and two right ones of the third."""
    stats = [asked("10", "01", "10"), asked("00", "01", "00"), asked("11", "11", "10")]
    assert first_batch_line(*parts(stats)) == (
        "sampled     accuracy 0.500  pass@2 0.667  any of M 1.000  with signal 0.667  forked 0.33  3 questions"
    )
    assert len(first_batch_line(*parts(stats * 30))) <= 103


def test_the_line_without_forks():
    assert first_batch_line(*parts([asked("1000"), asked("0000")])) == (
        "sampled     accuracy 0.125  pass@4 0.500  with signal 0.500  2 questions"
    )


def test_pass_at_k_where_questions_have_different_numbers_of_roots():
    """One of three samples is right: two of them include it with probability 2/3."""
    assert "pass@2 0.333" in first_batch_line(*parts([asked("100"), asked("00")]))


def warnings(*stats: Asked, greedy: float | None = None, branching: str = "threshold") -> list[str]:
    return list(first_batch_warnings(*parts(stats), greedy, branching, "the questions are too easy: ask others"))


HEALTHY = [asked("10", "01", "10"), asked("00", "01", "01"), asked("10", "10", "00"), asked("00", "00", "00")] * 4


def test_a_batch_with_something_to_learn_has_no_warning():
    assert warnings(*HEALTHY, greedy=0.3) == []


@pytest.mark.parametrize(("stats", "greedy", "told"), [
    ([asked("11", "11", "01")], None,
     "No question of the first batch has returns that differ, so the model learns nothing: the questions are "
     "too easy: ask others."),
    ([asked("00", "00", "01", pays=[0.0, -1.0, 0.0, 0.0])] * 2, 0.0,
     "None of the 8 trajectories of the first batch is right, so the model can learn the format at most: "
     "cold-start the model, or ask easier questions."),
    ([*[asked("11", "11", "01")] * 10, asked("10", "11", "10")], None,
     "The sampled accuracy of the first batch is 0.95, so there is little to learn: ask harder questions."),
    (HEALTHY, 0.9,
     "All trajectories together solve 0.75 of the first batch, and greedy decoding solves 0.90 of the "
     "evaluation, so there is little to learn: sample more rollouts, or ask harder questions."),
])  # fmt: skip
def test_updates_with_nothing_to_work_with(stats, greedy, told):
    assert warnings(*stats, greedy=greedy) == [told]


def test_a_small_batch_does_not_show_that_there_is_little_to_find():
    """Four questions, of which three are solved: 0.75 +- 0.80."""
    assert warnings(*HEALTHY[:4], greedy=0.9) == []


def test_an_environment_that_pays_and_tells_no_accuracy_is_not_warned_of():
    paid = asked("00", "00", "01", pays=[0.5, 0.0, 1.0, 0.0])
    assert warnings(paid, paid) == []


@pytest.mark.parametrize(("nodes", "told"), [
    ({"forked": ""}, "No trajectory of the first batch goes on after a tool's response, so nothing forks."),
    ({"forked": "0101", "entropies": (0.3, 0.3002)},
     "The entropy hardly differs between tool responses (by 0.0002 nats from the 10 % to the 90 % quantile), so "
     "it cannot choose forks: check temperature and entropy_window."),
    ({"forked": "0000"},
     "None of the 8 tool responses of the first batch forks: branch_threshold is too high; lower "
     'it ("auto" follows dH from now on).'),
])  # fmt: skip
def test_forks_with_nothing_to_work_with(nodes, told):
    stats = [asked("10", "01", **nodes), asked("00", "01", **nodes)]
    # Until there are earlier questions, "permuted" is decided by the own dH.
    assert warnings(*stats) == warnings(*stats, branching="permuted") == [told]
    assert warnings(*stats, branching="never") == []
    assert warnings(*stats, branching="random") == ([told] if "goes on" in told else [])
    # Nothing is told of responses that no rule was asked about: a fork was refused before.
    undecided = [
        replace(one, nodes=tuple(replace(n, decision=replace(n.decision, eligible=False)) for n in one.nodes))
        for one in stats
    ]
    assert warnings(*undecided) == ([told] if "goes on" in told else [])
    # Without trajectories beside the roots there is nothing to fork.
    assert warnings(asked("10", **nodes), asked("00", **nodes)) == []


@pytest.mark.parametrize("nodes", ["", "0"])
def test_forks_of_roots_that_were_cut_off_are_not_warned_of(nodes):
    """The decision is lost with the turn of the root: the only node that is known, if there is one, is the fork's."""
    one = replace(asked("0", "10", "1"), nodes=asked("0", "10", nodes).nodes)
    assert warnings(replace(one, nodes=tuple(replace(node, on_policy=False) for node in one.nodes))) == []
