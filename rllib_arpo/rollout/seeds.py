"""Seeds of requests that depend on what is generated, and on nothing else."""

from __future__ import annotations

import numpy as np

from rllib_arpo.core.tree import fork_path


def request_seed(seed: int, question: int, agent_id: str, turn: int) -> int:
    """The seed of one turn's sampler, in 0 .. 2^63 - 1.

    Args:
        seed: of the run, >= 0.
        question: the question's number in its task.
        agent_id: "0", "1.0", ...; the path of forks that leads to the trajectory.
        turn: the index of the turn on the trajectory's whole path.
    """
    forks = fork_path(agent_id)
    words = [seed, question, turn, len(forks), *forks]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))
