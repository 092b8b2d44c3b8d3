"""Fork decisions, endings and advantages in words."""

import pytest

from rllib_arpo.record.read import Question, Trajectory
from rllib_arpo.show import words

SETTINGS = {
    "num_rollouts": 16,
    "branching": "threshold",
    "branch_base_probability": 0.5,
    "branch_entropy_weight": 0.2,
    "branch_threshold": 0.5,
    "branch_width": 1,
    "consecutive_fork_penalty": 0.0,
    "random_fork_probability": None,
}
ROOT = {"agent_id": "0", "parent": None, "topped_up": False, "inherited_turns": 0}


def said(turn: dict, num_roots: int = 8, trajectory: dict | None = None, **settings) -> str:
    """Of a turn that was decided with 4 forks left, unless `turn` says otherwise."""
    own = Trajectory(ROOT | (trajectory or {}), ())
    roots = tuple(Trajectory(ROOT | {"agent_id": str(i)}, ({}, {})) for i in range(num_roots))
    decided = {"turn": 1, "depth": 1, "delta": 0.21, "probability": 0.542, "eligible": True, "budget": 4, "children": 0}
    return words.decision(decided | turn, own, Question({}, roots, SETTINGS | settings))


@pytest.mark.parametrize(("turn", "settings", "expected"), [
    ({"children": 1}, {}, "dH = +0.21, P = 0.542 (from 0.5 + 0.2 dH), forks where P > 0.5: forked once, 3 of 8 left."),
    ({"delta": -0.1, "probability": 0.271}, {"consecutive_fork_penalty": 0.5, "branching": "probability"},
     "dH = −0.10, P = 0.271 (from 0.5 + 0.2 dH with the penalty for forks in a row), forks with probability P: "
     "not forked, 4 of 8 left."),
    ({"children": 3, "probability": None}, {"branching": "random", "random_fork_probability": 0.3},
     "dH = +0.21, forks with probability 0.3: forked 3 times, 1 of 8 left."),
    ({"children": 2, "probability": None}, {"branching": "a rule of the user"},
     "dH = +0.21, forks by the rule 'a rule of the user': forked twice, 2 of 8 left."),
    ({"eligible": False}, {},
     "dH = +0.21: not decided: no fork of 8 was left, a fork was refused, or the question ended first."),
    ({"eligible": False}, {"num_rollouts": 8}, "dH = +0.21: not decided, since this question has no forks."),
    ({"delta": None}, {}, "The node before this turn was not examined."),
    ({"delta": None, "turn": 0, "depth": 0}, {}, "The prompt precedes this turn: there is nothing to decide."),
])  # fmt: skip
def test_decisions(turn, settings, expected):
    assert said(turn, **settings) == expected


def test_decisions_of_forks_and_top_ups():
    fork = {"agent_id": "0.0", "parent": "0", "inherited_turns": 1}
    assert said({"delta": None, "turn": 0}, trajectory=fork) == (
        "This trajectory was forked here; the decision stands at the turn of 0."
    )
    assert said({"delta": None, "turn": 0, "depth": 2}, trajectory=fork | {"inherited_turns": 2}) == (
        "This trajectory was forked here; 0 was cut off in the turn that decided it."
    )
    assert said({}, trajectory={"topped_up": True}) == "dH = +0.21: not decided, since a top-up is not forked."


def test_advantages():
    shared = {"leaves": 3, "weight": 2.0, "soft_positive": 1.0, "soft_negative": -0.5, "hard_advantage": 0.25}
    assert words.advantages(shared) == (
        "Advantage of its tokens, 3 leaves below: soft +0.50 and −0.25 (means of the positive and the negative parts), "
        "hard +0.25."
    )
    assert words.advantages({"leaves": 0}) == "No trajectory that counts passes this turn."
    assert words.advantages({"leaves": None}) == ""
