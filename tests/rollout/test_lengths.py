"""Slow and long trajectories are neither dropped nor starved: lengths are distributed as one question at a time gives.

Tools take the longer, the longer the turn was, and questions overlap: whoever took what comes first would get short
ones.
"""

from __future__ import annotations

import numpy as np


def mean_tokens(questions) -> float:
    return float(np.mean([n for q in questions for n in q.stats.path_tokens]))


def test_lengths_do_not_depend_on_how_many_questions_run_at_a_time(sample_questions):
    numbers = list(range(16))
    slow_if_long = {"delay_per_token": 0.01}
    together = sample_questions(numbers, slow_if_long, num_envs=6, num_rollouts=4, num_initial_rollouts=2)
    alone = sample_questions(numbers, {}, num_envs=1, num_rollouts=4, num_initial_rollouts=2, deterministic=True)
    seeded = sample_questions(
        numbers, slow_if_long, num_envs=6, num_rollouts=4, num_initial_rollouts=2, deterministic=True
    )
    # With seeds: the very same trajectories, whoever ended first.
    assert seeded.finished != alone.finished == numbers
    assert seeded.lengths() == alone.lengths()
    # Without: all questions, the same distribution.
    assert sorted(together.finished) == numbers
    spread = np.std([n for q in alone.questions for n in q.stats.path_tokens]) / np.sqrt(16)
    assert abs(mean_tokens(together.questions) - mean_tokens(alone.questions)) < 4 * spread


def test_who_takes_the_quick_ones_first_would_be_biased(sample_questions):
    """The check of the check: the first half to end is shorter than the whole."""
    sampled = sample_questions(
        range(24), {"delay_per_token": 0.02}, num_envs=24, num_rollouts=4, num_initial_rollouts=2, deterministic=True
    ).questions
    assert mean_tokens(sampled[:8]) < 0.85 * mean_tokens(sampled)
