"""Learner metrics that are right for any number of learners, passes and optimizer steps.

RLlib merges the results of several learners by averaging means, which is wrong for shards of different size. Here
the learners sum numerators and denominators over passes, steps and ranks, and divide once; every rank then logs the
same global value, which RLlib's averaging does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rllib_arpo.core.columns import LAYOUTS, LEAF_ADVANTAGES, LEAF_REWARDS, PACKED_TREES, TREES
from rllib_arpo.core.token_counts import flat_tokens, shared_tokens


class Total(StrEnum):
    """The quantities that are summed during an update."""

    POLICY_LOSS = "policy_loss"
    LOSS = "loss"
    ENTROPY = "entropy"
    RATIO = "ratio"
    KL = "kl"
    LOSS_TOKENS = "loss_tokens"
    CLIPPED_MASS = "clipped_mass"
    ADVANTAGE_MASS = "advantage_mass"
    ENGINE_GAP = "engine_gap"
    TOKENS_UNIQUE = "tokens_unique"
    TOKENS_FLAT = "tokens_flat"
    TOKENS_COMPUTED = "tokens_computed"
    TOKENS_SHARED = "tokens_shared"
    TOKENS_MIXED = "tokens_mixed"
    GROUPS_WITHOUT_SIGNAL = "groups_without_signal"
    QUESTIONS_TRAINED = "questions_trained"
    VALUE_LEAVES = "value_leaves"
    VALUE_SQUARES = "value_squares"
    VALUE_ERROR = "value_error"


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
    """Adds the statistics of a shard that are known before the update: sizes, and whether rewards differ."""
    for tree, layout, advantages in zip(columns[TREES], columns[LAYOUTS], columns[LEAF_ADVANTAGES], strict=True):
        totals.add(Total.TOKENS_FLAT, flat_tokens(tree, layout))
        shared, mixed = shared_tokens(tree, layout, advantages)
        totals.add(Total.TOKENS_SHARED, shared)
        totals.add(Total.TOKENS_MIXED, mixed)
    for packed in columns[PACKED_TREES]:
        totals.add(Total.TOKENS_UNIQUE, packed.num_tokens)
    for rewards in columns[LEAF_REWARDS]:
        totals.add(Total.GROUPS_WITHOUT_SIGNAL, len(set(rewards.tolist())) < 2)


def summarize(sums: dict[Total, float], gradient_norms: Sequence[float], has_reference: bool) -> dict[str, float]:
    """The metrics of one update (docs/watch.md). A mean over no token or no step is left out.

    `policy_loss`, `total_loss` (with KL and entropy bonus) and `grad_norm` (before clipping) are means over optimizer
    steps; `entropy`, `ratio_mean`, `kl` (k3, to the reference model) and `engine_logprob_gap` are means over unique
    loss tokens, all epochs; `clip_fraction` is the share of the absolute advantage mass that clipping removed;
    `mixed_sign_share` is the share of the generated tokens on several trajectories whose advantages have both signs.
    With `baseline="value"`, `value_loss` is the mean squared error of the values with which this update judged turns,
    and `value_explained_variance` the share of the advantages' squares that they took away (negative: they added).
    The token counts are those of one epoch, but `tokens_computed`: of all passes forward and backward.
    """
    result = {
        "tokens_unique": sums[Total.TOKENS_UNIQUE],
        "tokens_flat": sums[Total.TOKENS_FLAT],
        "tokens_computed": sums[Total.TOKENS_COMPUTED],
        "groups_without_signal": sums[Total.GROUPS_WITHOUT_SIGNAL],
        "num_questions_trained": sums[Total.QUESTIONS_TRAINED],
    }
    if num_shared := sums[Total.TOKENS_SHARED]:
        result["mixed_sign_share"] = sums[Total.TOKENS_MIXED] / num_shared
    if num_leaves := sums[Total.VALUE_LEAVES]:
        result["value_loss"] = sums[Total.VALUE_ERROR] / num_leaves
        result["value_explained_variance"] = 1.0 - sums[Total.VALUE_ERROR] / (sums[Total.VALUE_SQUARES] or 1.0)
    if gradient_norms:
        result["policy_loss"] = sums[Total.POLICY_LOSS] / len(gradient_norms)
        result["total_loss"] = sums[Total.LOSS] / len(gradient_norms)
        result["grad_norm"] = sum(gradient_norms) / len(gradient_norms)
    if num_tokens := sums[Total.LOSS_TOKENS]:
        result["entropy"] = sums[Total.ENTROPY] / num_tokens
        result["ratio_mean"] = sums[Total.RATIO] / num_tokens
        result["engine_logprob_gap"] = sums[Total.ENGINE_GAP] / num_tokens
        result["clip_fraction"] = sums[Total.CLIPPED_MASS] / (sums[Total.ADVANTAGE_MASS] or 1.0)
        if has_reference:
            result["kl"] = sums[Total.KL] / num_tokens
    return result
