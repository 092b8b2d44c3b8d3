"""Fork decisions in an order that timing cannot change: turn by turn, each when the whole question has passed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rllib_arpo.core.tree import fork_path


@dataclass(frozen=True, slots=True)
class ForkCandidate:
    """A node (a tool response) whose entropies are known.

    Attributes:
        agent_id: the trajectory that executed the call.
        num_turns: turns on its path above the node.
        delta: dH at the node.
        prefix: the token ids from the prompt to the tool response.
        source: the environment's agent that is forked; it stands at the node.
    """

    agent_id: str
    num_turns: int
    delta: float
    prefix: list[int]
    source: str


def by_agent(candidate: ForkCandidate) -> Any:
    """Logical order: "0", "0.0", "0.1", "1", ..., "10"."""
    return fork_path(candidate.agent_id)


def by_rise(candidate: ForkCandidate) -> Any:
    """The largest rise first; equal rises in logical order."""
    return -candidate.delta, by_agent(candidate)


#: `budget_allocation` -> sort key of the candidates of one turn: who is first has the first claim on the budget.
BUDGET_ALLOCATIONS: dict[str, Callable[[ForkCandidate], Any]] = {"first_come": by_agent, "ranked": by_rise}


class ForkSchedule:
    """Holds back a question's fork candidates until all of its live trajectories have passed their turn.

    No trajectory waits for a decision, and no other question does: only the children start later.
    """

    def __init__(self, budget_allocation: str):
        self._order = BUDGET_ALLOCATIONS[budget_allocation]
        self._passed: dict[str, int] = {}
        """Live trajectory -> the last turn of its path that needs no waiting for."""
        self._candidates: list[ForkCandidate] = []

    def passed(self, agent_id: str, num_turns: int) -> None:
        """Nothing more will be decided on a trajectory above or at the node below `num_turns` turns.

        It begins at that node, or the entropies that follow it are known.
        """
        self._passed[agent_id] = num_turns

    def ended(self, agent_id: str) -> None:
        del self._passed[agent_id]

    def add(self, candidate: ForkCandidate) -> None:
        self._candidates.append(candidate)

    def due(self) -> list[ForkCandidate]:
        """Takes the candidates of the earliest turn, in order, if every live trajectory has passed it; else none."""
        turn = min((c.num_turns for c in self._candidates), default=0)
        if any(passed < turn for passed in self._passed.values()):
            return []
        due = [c for c in self._candidates if c.num_turns == turn]
        self._candidates = [c for c in self._candidates if c.num_turns > turn]
        return sorted(due, key=self._order)
