"""Computes learner metrics, right for any number of learners, passes and optimizer steps, and raises alarms on them.

RLlib merges the results of several learners by averaging means, which is wrong for shares of different size. Here
the learners sum numerators and denominators over passes, steps and ranks, and divide once; every rank then logs the
same global value, which RLlib's averaging does not change. A guard raises an alarm if a metric shows, earlier than the
reward, that training goes wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rllib_arpo.core.columns import LEAF_ADVANTAGES, PACKED_TREES
from rllib_arpo.core.metric import Metric, mean, measure
from rllib_arpo.core.token_counts import flat_tokens, shared_tokens


class Total(StrEnum):
    """The quantities that are summed during an update."""

    POLICY_LOSS = "policy_loss"
    LOSS = "loss"
    ENTROPY = "entropy"
    RATIO = "ratio"
    KL = "kl"
    KL_TOKENS = "kl_tokens"
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


class Totals:
    """Running float64 sums on the device: adding to them does not wait for it."""

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
    """Adds what is known of the questions before the update: sizes, and whether rewards differ."""
    for computed, packed in zip(columns[LEAF_ADVANTAGES], columns[PACKED_TREES], strict=True):
        totals.add(Total.TOKENS_FLAT, flat_tokens(computed.tree, computed.layout))
        shared, mixed = shared_tokens(computed.tree, computed.layout, computed.by_node, computed.offsets)
        totals.add(Total.TOKENS_SHARED, shared)
        totals.add(Total.TOKENS_MIXED, mixed)
        totals.add(Total.TOKENS_UNIQUE, packed.num_tokens)
        totals.add(Total.GROUPS_WITHOUT_SIGNAL, len(set(computed.rewards.tolist())) < 2)


@dataclass(frozen=True, slots=True)
class Update:
    """The numbers from which the metrics of an update are computed.

    Attributes:
        sums: the totals over all learners.
        gradient_norms: the norm before clipping in each optimizer step.
    """

    sums: Mapping[Total, float]
    gradient_norms: Sequence[float]


def total(name: Total) -> Callable[[Update], float]:
    return lambda update: update.sums[name]


def ratio(numerator: Total, denominator: Total) -> Callable[[Update], float | None]:
    """The ratio of two totals; None if the denominator is 0."""
    return lambda update: update.sums[numerator] / update.sums[denominator] if update.sums[denominator] else None


def per_step(name: Total) -> Callable[[Update], float | None]:
    """The mean of a total over optimizer steps."""
    return lambda update: update.sums[name] / len(update.gradient_norms) if update.gradient_norms else None


def _clip_fraction(update: Update) -> float | None:
    if not update.sums[Total.LOSS_TOKENS]:
        return None
    return update.sums[Total.CLIPPED_MASS] / (update.sums[Total.ADVANTAGE_MASS] or 1.0)


#: The result lacks a mean over no token or no step, or has NaN.
UPDATE_METRICS: tuple[Metric[Update], ...] = (
    Metric("policy_loss", "mean over optimizer steps", per_step(Total.POLICY_LOSS)),
    Metric("total_loss", "the same, with KL and entropy bonus", per_step(Total.LOSS)),
    Metric("grad_norm", "before clipping, mean over optimizer steps", lambda update: mean(update.gradient_norms)),
    Metric("kl", "k3, to the reference model, per token", ratio(Total.KL, Total.KL_TOKENS)),
    Metric("entropy", "nats per token trained on", ratio(Total.ENTROPY, Total.LOSS_TOKENS)),
    Metric("ratio_mean", "new over old probability, mean over tokens", ratio(Total.RATIO, Total.LOSS_TOKENS)),
    Metric("clip_fraction", "share of the absolute advantage mass that clipping removed", _clip_fraction),
    Metric(
        "engine_logprob_gap",
        "mean of abs(learner - engine), nats per token",
        ratio(Total.ENGINE_GAP, Total.LOSS_TOKENS),
    ),
    Metric("tokens_unique", "tokens of one epoch, each once", total(Total.TOKENS_UNIQUE)),
    Metric("tokens_flat", "the same, if no trajectories shared tokens", total(Total.TOKENS_FLAT)),
    Metric("tokens_computed", "tokens of all training passes of all epochs", total(Total.TOKENS_COMPUTED)),
    Metric(
        "mixed_sign_share",
        "share of the shared generated tokens whose trajectories have advantages of both signs",
        ratio(Total.TOKENS_MIXED, Total.TOKENS_SHARED),
    ),
    Metric("groups_without_signal", "questions with equal rewards", total(Total.GROUPS_WITHOUT_SIGNAL)),
    Metric(
        "num_questions_trained",
        "questions in the optimizer steps of all epochs, also those without a signal",
        total(Total.QUESTIONS_TRAINED),
    ),
)


def update_metrics(sums: Mapping[Total, float], gradient_norms: Sequence[float]) -> dict[str, float]:
    """The values of `UPDATE_METRICS`; the arguments are `Update`'s attributes."""
    return measure(UPDATE_METRICS, Update(sums, gradient_norms))


#: The driver counts what `alarms` finds.
NUM_ALARMS: Metric[Mapping[str, str]] = Metric("num_alarms", "guards whose limit is crossed", len)


@dataclass(frozen=True, slots=True)
class Guard:
    """Watches one of the learner's metrics.

    Attributes:
        metric: its name under `learners/default_policy/`.
        limit: the default; `guards={metric: limit}` sets another, None switches the guard off.
        is_crossed: `(value, limit)` -> whether it raises an alarm.
        advice: what the alarm means, and what the user should look at.
    """

    metric: str
    limit: float
    is_crossed: Callable[[float, float], bool]
    advice: str


GUARDS = (
    Guard(
        "engine_logprob_gap",
        0.1,
        lambda value, limit: value > limit,
        "engine and learner disagree about the sampled tokens: look at dtype, temperature and the weight sync",
    ),
    Guard(
        "ratio_mean",
        0.2,
        lambda value, limit: abs(value - 1.0) > limit,
        "the policy moves far within one update (the limit is the distance from 1): "
        "lower lr or num_epochs, or use larger minibatches",
    ),
    Guard(
        "entropy",
        0.02,
        lambda value, limit: value < limit,
        "the policy hardly explores any more: raise entropy_coeff or kl_coeff, or lower lr",
    ),
    Guard(
        "grad_norm",
        100.0,
        lambda value, limit: value > limit,
        "the gradient is very large before clipping: look at the rewards and at loss_aggregation, or lower lr",
    ),
)
#: The default limits. Their reasons: the gap begins near 0.04 nats in bf16 (0.2 at a wrong temperature) and near 1e-5
#: in fp32; an update of one step has ratio 1; a language model that still learns has an entropy above 0.05 nats;
#: gradients of these mean losses are of the order of 1.
GUARD_LIMITS: dict[str, float | None] = {guard.metric: guard.limit for guard in GUARDS}


def alarms(metrics: Mapping[str, float], limits: Mapping[str, float | None]) -> dict[str, str]:
    """Metric -> one sentence, for every guard whose limit is crossed.

    Args:
        metrics: of one update; a missing metric (no token was trained on) raises no alarm.
        limits: by metric; None switches a guard off, and a missing metric keeps its default.
    """
    limits = GUARD_LIMITS | dict(limits)
    found = {}
    for guard in GUARDS:
        value, limit = metrics.get(guard.metric), limits[guard.metric]
        if value is not None and limit is not None and guard.is_crossed(value, limit):
            found[guard.metric] = f"{guard.metric} is {value:.4g} (limit {limit:g}): {guard.advice}."
    return found
