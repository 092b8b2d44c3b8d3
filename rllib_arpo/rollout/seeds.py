"""Computes the seed of each request, whatever the timing, and the seed of a run whose configuration has none."""

import hashlib
import secrets

import numpy as np

from rllib_arpo.core.tree import fork_path


def request_seed(seed: int, question: int, agent_id: str, turn: int) -> int:
    """The seed of one turn's sampler, in 0 .. 2^63 - 1.

    Args:
        seed: the run's, >= 0.
        question: the question's place in the order in which questions are asked.
        agent_id: "0", "1.0", ...; the path of forks that leads to the trajectory.
        turn: the index of the turn on the trajectory's whole path.
    """
    forks = fork_path(agent_id)
    words = [seed, question, turn, len(forks), *forks]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def trial_seed(trial: str | None) -> int:
    """A seed in 0 .. 2^31 - 1 for a run whose configuration has none.

    Args:
        trial: a name of the trial; a restored trial keeps its name, and thus its seed. None: draws a random seed.
    """
    if trial is None:
        return secrets.randbits(31)
    return int.from_bytes(hashlib.sha256(trial.encode()).digest()[:4], "big") >> 1
