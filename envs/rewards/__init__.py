"""Rewards: how answers are compared, and what a finished path earns."""

from __future__ import annotations

from rllib_arpo.envs.rewards.compose import (
    QA_METRICS,
    REWARDS,
    FinishedPath,
    Score,
    Scorer,
    find_reward,
    hierarchical,
    make_scorer,
)
from rllib_arpo.envs.rewards.judge import Judge
from rllib_arpo.envs.rewards.mathematics.accuracy import math_accuracy, solved_math_accuracy
from rllib_arpo.envs.rewards.qa import bounded_f1, exact_match, normalize_text, token_f1

__all__ = [
    "QA_METRICS", "REWARDS", "FinishedPath", "Judge", "Score", "Scorer", "bounded_f1", "exact_match", "find_reward",
    "hierarchical", "make_scorer", "math_accuracy", "normalize_text", "solved_math_accuracy", "token_f1",
]  # fmt: skip
