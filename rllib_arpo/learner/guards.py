"""Alarms on the metrics of an update: signs that training goes wrong before the reward shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """Watches one of the learner's metrics.

    Attributes:
        metric: its name under `learners/default_policy/`.
        limit: the default; `guards={metric: limit}` sets another, None switches the guard off.
        is_crossed: of (value, limit).
        advice: its meaning, and what the user should look at.
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
#: in fp32; an update of one step has ratio 1; a language model that still learns has an entropy above 0.05 nats; the
#: mean losses here have gradients of the order of 1.
GUARD_LIMITS: dict[str, float | None] = {guard.metric: guard.limit for guard in GUARDS}


def alarms(metrics: Mapping[str, float], limits: Mapping[str, float | None]) -> dict[str, str]:
    """Metric -> one sentence, for every guard whose limit is crossed.

    Args:
        metrics: of one update; a metric that is missing (no token was trained on) raises no alarm.
        limits: by metric, None for off; the defaults stand where one is missing.
    """
    limits = GUARD_LIMITS | dict(limits)
    found = {}
    for guard in GUARDS:
        value, limit = metrics.get(guard.metric), limits[guard.metric]
        if value is not None and limit is not None and guard.is_crossed(value, limit):
            found[guard.metric] = f"{guard.metric} is {value:.4g} (limit {limit:g}): {guard.advice}."
    return found
