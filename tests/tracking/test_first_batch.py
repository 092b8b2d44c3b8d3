"""What the first batch says before the first update, of literal questions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rllib_arpo.core.figures import ExaminedNode
from rllib_arpo.core.tree import ForkDecision, QuestionTree
from rllib_arpo.tracking.first_batch import first_batch_warnings
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
    pays: Sequence[float] = (),
) -> Asked:
    """A question whose trajectories are right ("1") or wrong ("0"), and whose tool responses fork or do not.

    A right trajectory is paid 1, a wrong one 0, unless `pays` says which.
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
        ExaminedNode("search", 0.2, True, ForkDecision(0.3, 0.1, 0.52, True, int(mark)),
                     np.zeros(1, np.int32), 1)
        for mark in forked
    )  # fmt: skip
    return Asked(make_tree([0], trajectories), nodes)


def parts(questions: Sequence[Asked]) -> tuple[list[QuestionTree], list[ExaminedNode]]:
    return [one.tree for one in questions], [node for one in questions for node in one.nodes]


def warnings(
    *stats: Asked, branching: str = "threshold", threshold: float | str = 0.5, learns: bool = True
) -> list[str]:
    told = "the questions are too easy: ask others"
    settings = {"branching": branching, "branch_threshold": threshold, "branch_depth": 9}
    return list(first_batch_warnings(*parts(stats), settings, learns, told))


NOTHING = asked("00", "00", "01", pays=[0.0, -1.0, 0.0, 0.0])


@pytest.mark.parametrize(("stats", "learns", "told"), [
    ([asked("10", "01", "10"), asked("00", "01", "01"), asked("11", "11", "10")], True, []),
    # One attempt a question, compared with the whole batch.
    ([asked("1"), asked("0")], True, []),
    ([asked("11", "11", "01")], False,
     ["No question of the first batch has rewards that differ, so the model learns nothing: the questions are "
      "too easy: ask others."]),
    ([NOTHING] * 2, True,
     ["None of the 8 trajectories of the first batch is right, so the model can learn the format at most: "
      "cold-start the model, or ask easier questions."]),
    # An environment that pays and tells no accuracy.
    ([asked("00", "00", "01", pays=[0.5, 0.0, 1.0, 0.0])], True, []),
])  # fmt: skip
def test_updates_with_nothing_to_work_with(stats, learns, told):
    assert warnings(*stats, learns=learns) == told


@pytest.mark.parametrize(("forked", "told"), [
    ("", "No trajectory of the first batch goes on after a tool's response, so nothing forks."),
    ("0000", "None of the 8 tool responses of the first batch forks: branch_threshold is too high; lower "
             'it, or set "auto".'),
])  # fmt: skip
def test_forks_with_nothing_to_work_with(forked, told):
    stats = [asked("10", "01", forked), asked("00", "01", forked)]
    # Until there are earlier questions, "permuted" is decided by the own dH.
    assert warnings(*stats) == warnings(*stats, branching="permuted") == [told]
    assert warnings(*stats, branching="never") == []
    assert warnings(*stats, threshold="auto") == ([told] if "goes on" in told else [])
    # Nothing is told of responses that no rule was asked about: a fork was refused before.
    undecided = [
        replace(one, nodes=tuple(replace(n, decision=replace(n.decision, eligible=False)) for n in one.nodes))
        for one in stats
    ]
    assert warnings(*undecided) == ([told] if "goes on" in told else [])
    nowhere = "None of the 8 tool responses of the first batch forks: a run forks at tool response 9 of a path."
    assert warnings(*stats, branching="depth") == [told if "goes on" in told else nowhere]
    # Without trajectories beside the roots there is nothing to fork.
    assert warnings(asked("10", "", forked), asked("00", "", forked)) == []


@pytest.mark.parametrize("nodes", ["", "0"])
def test_forks_of_roots_that_were_cut_off_are_not_warned_of(nodes):
    """The decision is lost with the turn of the root: the only node that is known, if there is one, is the fork's."""
    assert warnings(replace(asked("0", "10", "1"), nodes=asked("0", "10", nodes).nodes)) == []
