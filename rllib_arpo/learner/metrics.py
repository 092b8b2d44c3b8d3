"""Learner metrics that are right for any number of learners, passes and optimizer steps.

RLlib merges the results of several learners by averaging means, which is wrong for shards of different size. Here
numerators and denominators are summed over passes, steps and ranks, and divided once; every rank then logs the same
global value, which RLlib's averaging leaves as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rllib_arpo.connectors.columns import LAYOUTS, LEAF_REWARDS, PACKED_TREES, TREES
from rllib_arpo.learner.training_data import flat_tokens


class Total(StrEnum):
    """What is summed up during an update."""

    POLICY_LOSS = "policy_loss"
    ENTROPY = "entropy"
    RATIO = "ratio"
    KL = "kl"
    LOSS_TOKENS = "loss_tokens"
    CLIPPED_MASS = "clipped_mass"
    ADVANTAGE_MASS = "advantage_mass"
    ENGINE_GAP = "engine_gap"
    TOKENS_UNIQUE = "tokens_unique"
    TOKENS_FLAT = "tokens_flat"
    GROUPS_WITHOUT_SIGNAL = "groups_without_signal"
    QUESTIONS_TRAINED = "questions_trained"


class Totals:
    """Running float64 sums, kept on the device, so that adding to them does not wait for it."""

    def __init__(self, device: torch.device | str) -> None:
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in Total}

    def add(self, name: Total, value: Tensor | float) -> None:
        """Adds a scalar."""
        self._sums[name] += value.detach() if isinstance(value, Tensor) else value

    def over_learners(self, distributed: bool) -> dict[Total, float]:
        """The sums over all ranks, the same on each of them."""
        sums = torch.stack(list(self._sums.values()))
        if distributed:
            dist.all_reduce(sums)
        return dict(zip(self._sums, sums.tolist(), strict=True))


def add_questions(totals: Totals, columns: dict[str, Any]) -> None:
    """Adds what is known of a shard's questions before the update: their sizes, and whether their rewards differ."""
    for tree, layout in zip(columns[TREES], columns[LAYOUTS], strict=True):
        totals.add(Total.TOKENS_FLAT, flat_tokens(tree, layout))
    for packed in columns[PACKED_TREES]:
        totals.add(Total.TOKENS_UNIQUE, packed.num_tokens)
    for rewards in columns[LEAF_REWARDS]:
        totals.add(Total.GROUPS_WITHOUT_SIGNAL, len(set(rewards.tolist())) < 2)


def summarize(sums: dict[Total, float], gradient_norms: Sequence[float], has_reference: bool) -> dict[str, float]:
    """docs/design.md's metrics of one update. A mean without a single token or step is left out.

    `policy_loss` and `grad_norm` (before clipping) are means over optimizer steps; `entropy`, `ratio_mean`, `kl` (k3,
    to the reference model) and `engine_logprob_gap` are means over unique loss tokens, all epochs; `clip_fraction` is
    the share of the absolute advantage mass that clipping removed; the token counts are those of one epoch.
    """
    result = {
        "tokens_unique": sums[Total.TOKENS_UNIQUE],
        "tokens_flat": sums[Total.TOKENS_FLAT],
        "groups_without_signal": sums[Total.GROUPS_WITHOUT_SIGNAL],
        "num_questions_trained": sums[Total.QUESTIONS_TRAINED],
    }
    if gradient_norms:
        result["policy_loss"] = sums[Total.POLICY_LOSS] / len(gradient_norms)
        result["grad_norm"] = sum(gradient_norms) / len(gradient_norms)
    if num_tokens := sums[Total.LOSS_TOKENS]:
        result["entropy"] = sums[Total.ENTROPY] / num_tokens
        result["ratio_mean"] = sums[Total.RATIO] / num_tokens
        result["engine_logprob_gap"] = sums[Total.ENGINE_GAP] / num_tokens
        result["clip_fraction"] = sums[Total.CLIPPED_MASS] / (sums[Total.ADVANTAGE_MASS] or 1.0)
        if has_reference:
            result["kl"] = sums[Total.KL] / num_tokens
    return result
