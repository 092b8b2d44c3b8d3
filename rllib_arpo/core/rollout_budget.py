"""A question's budget in executed tool calls or generated tokens, in place of a number of trajectories."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rllib_arpo.core.tree import Turn

TOOL_CALLS, GENERATED_TOKENS = "tool_calls", "generated_tokens"
#: Unit of a budget -> the cost of a turn.
UNITS: dict[str, Callable[[Turn], int]] = {
    TOOL_CALLS: lambda turn: int(turn.tool_call is not None),
    GENERATED_TOKENS: lambda turn: len(turn.token_ids),
}


@dataclass(frozen=True, slots=True)
class RolloutBudget:
    """The budget of a question.

    Attributes:
        unit: a key of `UNITS`.
        amount: the budget.
        path_cost: the expected cost of a whole path, >= 1.
    """

    unit: str
    amount: float
    path_cost: float

    def cost(self, turns: Iterable[Turn]) -> int:
        """The cost of these turns."""
        return sum(map(UNITS[self.unit], turns))

    def paths(self) -> int:
        """The number of whole paths that the budget is expected to pay, >= 1."""
        return max(math.floor(self.amount / self.path_cost), 1)

    def forks(self, committed: float, prefix_cost: int) -> int:
        """The number of forks of a node that the rest of the budget is expected to pay.

        Args:
            committed: the amount that the question has spent and its live trajectories are expected to spend.
            prefix_cost: of the path above the node, which forks do not pay again.
        """
        return max(math.floor((self.amount - committed) / self.remaining(prefix_cost)), 0)

    def remaining(self, path_cost: int) -> float:
        """The cost that a live trajectory is expected to add, >= 1: `path_cost` is that of its path so far."""
        return max(self.path_cost - path_cost, 1.0)

    def top_ups(self, spent: int) -> int:
        """The number of further whole paths that are expected to bring the question closest to its budget."""
        return max(math.floor((self.amount - spent) / self.path_cost + 0.5), 0)
