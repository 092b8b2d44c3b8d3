"""Schedules the decisions on a question's nodes, and orders the nodes that get forks from its budget.

Neither trajectories nor other questions wait for a decision: only the children start later.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.core.tree import fork_path


@dataclass(frozen=True, slots=True)
class ForkCandidate:
    """A node (a tool response) whose entropies are known.

    Attributes:
        agent_id: the trajectory that executed the call.
        num_turns: turns on its path above the node.
        delta: dH at the node.
        prefix: the token ids from the prompt to the tool response.
        source: the environment's agent to fork, which has the node's state.
        refusal: the error with which the environment refused to make `source`.
    """

    agent_id: str
    num_turns: int
    delta: float
    prefix: list[int]
    source: str
    refusal: Exception | None = None


#: Sorts candidates, given in any order, into the order in which they are decided.
Order = Callable[[Sequence[ForkCandidate]], list[ForkCandidate]]


def _logical_key(candidate: ForkCandidate) -> Any:
    return fork_path(candidate.agent_id), candidate.num_turns


def by_agent(candidates: Sequence[ForkCandidate]) -> list[ForkCandidate]:
    """Logical order: "0", "0.0", "0.1", "1", ..., "10"; the nodes of one trajectory from the top."""
    return sorted(candidates, key=_logical_key)


def by_rise(candidates: Sequence[ForkCandidate]) -> list[ForkCandidate]:
    """The largest rise first; equal rises in logical order."""
    return sorted(candidates, key=lambda c: (-c.delta, _logical_key(c)))


def at_random(candidates: Sequence[ForkCandidate], rng: np.random.Generator) -> list[ForkCandidate]:
    """Uniformly at random within each tree (a root with its forks), the trees taking turns (Tree-GRPO)."""
    trees: dict[int, list[ForkCandidate]] = defaultdict(list)
    for candidate in by_agent(candidates):
        trees[fork_path(candidate.agent_id)[0]].append(candidate)
    shuffled = [[tree[i] for i in rng.permutation(len(tree))] for tree in trees.values()]
    rounds = max(map(len, shuffled), default=0)
    return [tree[i] for i in range(rounds) for tree in shuffled if i < len(tree)]


#: Whether a candidate's decision is due: `(candidate, all that wait, live trajectory -> examined turn) -> bool`.
Due = Callable[[ForkCandidate, Sequence[ForkCandidate], Mapping[str, int]], bool]


def at_once(candidate: ForkCandidate, waiting: Sequence[ForkCandidate], examined: Mapping[str, int]) -> bool:
    """Every node is decided the moment its entropies are known."""
    return True


def turn_by_turn(candidate: ForkCandidate, waiting: Sequence[ForkCandidate], examined: Mapping[str, int]) -> bool:
    """The nodes of a turn are decided together, when all live trajectories of the question are past that turn."""
    first = min(other.num_turns for other in waiting)
    return candidate.num_turns == first and all(turns >= first for turns in examined.values())


def over_tree(candidate: ForkCandidate, waiting: Sequence[ForkCandidate], examined: Mapping[str, int]) -> bool:
    """All nodes are decided together, when all trajectories have ended; the children's nodes come after these."""
    return not examined


class ForkSchedule:
    """Holds fork candidates back until their decision is due."""

    def __init__(self, is_due: Due, order: Order):
        self._is_due, self._order = is_due, order
        #: Whether a candidate may be decided later than in the engine step in which it is added.
        self.defers = is_due is not at_once
        #: Live trajectory -> the last turn of its path whose node is known: a candidate, or none.
        self._examined: dict[str, int] = {}
        self._candidates: list[ForkCandidate] = []

    def examined(self, agent_id: str, num_turns: int) -> None:
        """Notes that the entropies after this path's first `num_turns` responses are known.

        A fork begins with those that it inherits.
        """
        self._examined[agent_id] = num_turns

    def ended(self, agent_id: str) -> None:
        del self._examined[agent_id]

    def add(self, candidate: ForkCandidate) -> None:
        self._candidates.append(candidate)

    def due(self) -> list[ForkCandidate]:
        """Removes and returns the candidates whose decision is due, in order."""
        marked = [(one, self._is_due(one, self._candidates, self._examined)) for one in self._candidates]
        self._candidates = [candidate for candidate, is_due in marked if not is_due]
        return self._order([candidate for candidate, is_due in marked if is_due])


#: `budget_allocation` -> a function that makes a question's schedule from its random generator.
BUDGET_ALLOCATIONS: dict[str, Callable[[np.random.Generator], ForkSchedule]] = {
    "first_come": lambda rng: ForkSchedule(at_once, by_agent),
    "ranked": lambda rng: ForkSchedule(turn_by_turn, by_rise),
    "ranked_over_tree": lambda rng: ForkSchedule(over_tree, by_rise),
    "random_over_tree": lambda rng: ForkSchedule(over_tree, lambda candidates: at_random(candidates, rng)),
}
#: The allocations that look at the rise.
RANKED = frozenset({"ranked", "ranked_over_tree"})
#: The allocations that may decide a node before the nodes above it.
OVER_TREE = frozenset({"ranked_over_tree", "random_over_tree"})


def make_schedule(budget_allocation: str, rng: np.random.Generator, *, deterministic: bool) -> ForkSchedule:
    """The schedule of one question.

    Args:
        budget_allocation: a key of `BUDGET_ALLOCATIONS`.
        rng: for the question's random decisions.
        deterministic: True if timing must not matter: "first_come" then decides turn by turn in the order of agent ids.
    """
    schedule = BUDGET_ALLOCATIONS[budget_allocation](rng)
    return ForkSchedule(turn_by_turn, by_agent) if deterministic and not schedule.defers else schedule
