"""The clipped objective on a packed tree, token by token (docs/design.md, "One pass over the tree").

Everything here is per token and unnormalised: the learner sums over its loss tokens and divides by the global
denominator of the minibatch. K: the loss tokens of one pass.
"""

import torch
from torch import Tensor

#: `|log ratio|` is clamped to this before `exp`: e^20 = 4.9e8 is far outside every clip range, so a token beyond it is
#: a numerical accident. It keeps its finite value and loses its gradient; NaN still propagates.
MAX_LOG_RATIO = 20.0


def policy_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """`rho = exp(logp_theta - logp_old)`, [K], finite for finite input (see `MAX_LOG_RATIO`)."""
    return (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def tree_policy_objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    keep_clipped_gradient: bool = False,
) -> Tensor:
    """The clipped surrogate, summed over the leaves that share each token, in one pass; to be maximised.

    For leaves l with weights w_l >= 0 that share a token of ratio rho,

        sum_l w_l min(rho A_l, clip(rho, 1 - clip_low, 1 + clip_high) A_l)
            = a_pos * min(rho, 1 + clip_high) + a_neg * max(rho, 1 - clip_low),

    because the inner minimum is `A min(rho, 1 + clip_high)` for A >= 0 and `A max(rho, 1 - clip_low)` for A <= 0.
    Dual clip (arXiv 1912.09729) bounds the negative part by `dual_clip * A`: its factor becomes
    `min(max(rho, 1 - clip_low), dual_clip)`.

    With `keep_clipped_gradient` the upper bound is AEPO's (arXiv 2510.14545), `(1 + clip_high) * rho / sg(rho)` with sg
    the stopped gradient: a_pos keeps its value there and has the gradient `(1 + clip_high) a_pos d ln pi` instead of
    none. All leaves of a token have the same rho, so they sum up to the same formula. The lower bound and dual clip do
    not change.

    Args:
        log_probs: [K], with gradient.
        old_log_probs: [K], the learner's at the start of the update.
        a_pos, a_neg: [K], `sum w max(A, 0)` and `sum w min(A, 0)` (soft), or the hard attribution's.
        clip_low, clip_high: the clip range is [1 - clip_low, 1 + clip_high].
        dual_clip: above 1, or None for no dual clip.
        keep_clipped_gradient: AEPO's upper bound.

    Returns:
        [K].
    """
    ratio = policy_ratio(log_probs, old_log_probs)
    bounded = ratio.clamp(max=1.0 + clip_high)
    if keep_clipped_gradient:
        bounded = torch.where(ratio > 1.0 + clip_high, (1.0 + clip_high) * ratio / ratio.detach(), ratio)
    return a_pos * bounded + a_neg * ratio.clamp(min=1.0 - clip_low, max=dual_clip)


def importance_weight(old_log_probs: Tensor, engine_log_probs: Tensor, cap: float) -> Tensor:
    """`min(exp(logp_old - logp_engine), cap)`, [K], without gradient: corrects for the engine's numerics and lag."""
    return (old_log_probs - engine_log_probs).exp().clamp(max=cap).detach()


def kl_k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """`logp - logp_ref`, [K]: the unbiased, signed estimator of KL(pi || ref) on tokens sampled from pi.

    As a penalty in the reward (REINFORCE++, arXiv 2501.03262) it is used without gradient.
    """
    return log_probs - ref_log_probs


def kl_k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """`exp(d) - d - 1` with `d = logp_ref - logp`, [K], >= 0: GRPO's KL term (arXiv 2402.03300, eq. 4)."""
    difference = (ref_log_probs - log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


def advantage_mass(a_pos: Tensor, a_neg: Tensor) -> Tensor:
    """`sum_l w_l |A_l|` of each token (soft), [K], >= 0: the mass whose gradient clipping can remove."""
    return a_pos - a_neg


def clipped_mass(
    log_probs: Tensor,
    old_log_probs: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    keep_clipped_gradient: bool = False,
) -> Tensor:
    """The part of `advantage_mass` whose gradient clipping removed, [K], without gradient.

    With `keep_clipped_gradient` clipping removes only the negative part: above the upper bound the positive part still
    has a gradient, though not in proportion to its ratio.

    An update's clip fraction is the sum of this result divided by the sum of `advantage_mass`. It is weighted by mass
    because a shared token can be clipped for its good leaves and not for its bad ones.
    """
    ratio = policy_ratio(log_probs.detach(), old_log_probs)
    negative_clipped = ratio < 1.0 - clip_low
    if dual_clip is not None:
        negative_clipped = negative_clipped | (ratio > dual_clip)
    positive_clipped = torch.zeros_like(negative_clipped) if keep_clipped_gradient else ratio > 1.0 + clip_high
    return a_pos * positive_clipped - a_neg * negative_clipped
