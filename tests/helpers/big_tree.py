"""A tree of the size of a real question's: 16 leaves and 20,000 tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rllib_arpo.core.tree import ForkDecision, QuestionTree, StopReason, Trajectory, Turn, TurnTimes
from tests.helpers.trees import make_tree, make_turn

NUM_ROOTS, ROOT_TURNS, ROOT_TOKENS, FORK_TURNS, FORK_TOKENS = 8, 4, 400, 2, 450
LEAVES, TOKENS = 2 * NUM_ROOTS, NUM_ROOTS * (ROOT_TURNS * ROOT_TOKENS + FORK_TURNS * FORK_TOKENS)
#: Ids of the test models' tokenizer, each a visible ASCII character.
VISIBLE = 94


def big_tree() -> QuestionTree:
    """Each root is forked once, below its second turn; the entropies of all tokens are recorded."""
    rng = np.random.default_rng(0)

    def turn(count: int, start: float, last: bool, decision: ForkDecision | None = None) -> Turn:
        made = make_turn(rng.integers(VISIBLE, size=count), rng.integers(VISIBLE, size=0 if last else 200))
        entropies = rng.exponential(0.6, count).astype(np.float32)
        return replace(made, entropies=entropies, decision=decision, times=TurnTimes(start, start + 1.0, start + 1.5))

    trajectories = []
    for root in range(NUM_ROOTS):
        decisions = [
            None,
            ForkDecision(0.5, -0.2, 0.46, eligible=True, budget=NUM_ROOTS - root),
            ForkDecision(0.9, 0.2, 0.54, eligible=True, children=1, budget=NUM_ROOTS - root),
            ForkDecision(0.6, -0.1, 0.48, eligible=root < NUM_ROOTS - 1, budget=NUM_ROOTS - root - 1),
        ]
        turns = [turn(ROOT_TOKENS, 1.6 * i, i == ROOT_TURNS - 1, d) for i, d in enumerate(decisions)]
        right = float(root % 2)
        trajectories.append(Trajectory(str(root), tuple(turns), StopReason.ANSWER, right, right, True))
    for root in range(NUM_ROOTS):
        turns = [turn(FORK_TOKENS, 3.3 + 1.6 * i, i == FORK_TURNS - 1) for i in range(FORK_TURNS)]
        trajectories.append(
            Trajectory(f"{root}.0", tuple(turns), StopReason.NO_ANSWER, -1.0, parent=str(root), num_inherited_turns=2)
        )
    return make_tree(rng.integers(VISIBLE, size=600), trajectories, "big")
