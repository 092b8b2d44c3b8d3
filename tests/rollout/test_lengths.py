"""Slow and long trajectories are neither dropped nor starved: lengths are distributed as with one question at a time.

The longer a turn, the longer its tool takes, and questions overlap: a sampler that takes the first ones to end would
get short ones.
"""

import asyncio

import numpy as np
import pytest

from rllib_arpo.core.token_counts import all_path_tokens

BUDGET = {"num_rollouts": 4, "num_initial_rollouts": 2}


def tokens_per_question(questions) -> np.ndarray:
    """[Q]: mean tokens of a path. Questions, unlike the trajectories of one, are independent of each other."""
    return np.array([np.mean(all_path_tokens(q.tree)) for q in questions])


def deviation(sample: np.ndarray, other: np.ndarray) -> float:
    """The difference of the means, in standard errors."""
    error = np.sqrt(sample.var(ddof=1) / len(sample) + other.var(ddof=1) / len(other))
    return float(abs(sample.mean() - other.mean()) / error)


@pytest.mark.slow
def test_lengths_do_not_depend_on_how_many_questions_run_at_a_time(sample_questions):
    numbers = list(range(64))
    slow_if_long = {"hooks": {"step": lambda _env, _agent_id, token_ids: asyncio.sleep(0.005 * len(token_ids))}}
    together = sample_questions(numbers, slow_if_long, num_envs=8, **BUDGET)
    alone = sample_questions(numbers, {}, num_envs=1, deterministic=True, **BUDGET)
    seeded = sample_questions(numbers, slow_if_long, num_envs=8, deterministic=True, **BUDGET)
    # With seeds: the very same trajectories, whichever ended first.
    assert [question.number for question in alone] == numbers != [question.number for question in seeded]
    lengths = [
        {question.number: all_path_tokens(question.tree).tolist() for question in sample} for sample in (seeded, alone)
    ]
    assert lengths[0] == lengths[1]
    # Without: all questions, the same distribution.
    assert sorted(question.number for question in together) == numbers
    assert deviation(tokens_per_question(together), tokens_per_question(alone)) < 4
