"""Fork decisions, endings and advantages in words."""

from dataclasses import replace

import pytest

from rllib_arpo.core.tree import ForkDecision
from rllib_arpo.record.question import PlacedTurn, QuestionFacts, RecordedQuestion
from rllib_arpo.show import words
from tests.helpers.trees import make_trajectory, make_tree, make_turn

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
#: Of a turn that was decided with 4 forks left.
DECIDED = ForkDecision(level=1.0, delta=0.21, probability=0.542, eligible=True, children=0, budget=4)


def placed(own: int = 1, trajectory=None, num_roots: int = 8, advantages=None, **settings) -> PlacedTurn:
    """A turn of the first of so many roots with two turns, or of another trajectory."""
    turns = [make_turn([1], [2]), replace(make_turn([3]), decision=DECIDED)]
    trajectories = [make_trajectory(str(i), turns) for i in range(num_roots)]
    others = [] if trajectory is None else [trajectory]
    tree = make_tree([1], [*trajectories, *others])
    facts = QuestionFacts("training", 1, 0, 1.0)
    question = RecordedQuestion(facts, tree, SETTINGS | settings, None, {}, advantages)
    return PlacedTurn(question, trajectory or trajectories[0], own)


def said(decision: dict | None, **more) -> str:
    """Of a turn that was decided so; None: its node was not examined."""
    made = None if decision is None else replace(DECIDED, **decision)
    root = make_trajectory("0", [make_turn([1], [2]), replace(make_turn([3]), decision=made)])
    return words.decision(placed(**{"trajectory": root} | more))


@pytest.mark.parametrize(("decision", "settings", "expected"), [
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
    (None, {}, "The node before this turn was not examined."),
    (None, {"own": 0}, "The prompt precedes this turn, so there is nothing to decide."),
])  # fmt: skip
def test_decisions(decision, settings, expected):
    assert said(decision, num_roots=7, **settings) == expected


def test_decisions_of_forks_and_top_ups():
    fork = make_trajectory("0.0", [make_turn([5])], num_inherited_turns=1)
    assert words.decision(placed(own=0, trajectory=fork)) == (
        "This trajectory was forked here; see the decision at the turn of 0."
    )
    assert words.decision(placed(own=0, trajectory=replace(fork, num_inherited_turns=2))) == (
        "This trajectory was forked here; 0 was cut off in the turn that decided it."
    )
    top_up = replace(placed().trajectory, agent_id="8", topped_up=True)
    assert words.decision(placed(trajectory=top_up)) == "dH = +0.21: not decided, since a top-up is not forked."
