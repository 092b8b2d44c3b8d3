"""Changes the advantages of a pass by values that only the learner has: KL and entropies of the tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rllib_arpo.core.advantages import kl_reward_to_go
from rllib_arpo.core.columns import (
    A_NEG,
    A_POS,
    BEHAVIOR_ENTROPIES,
    END,
    ENTROPY_STATISTICS,
    LOSS_MASK,
    PARENT,
    REWARD_SCALE,
    WEIGHT,
)
from rllib_arpo.core.entropy_advantage import entropy_factor


def subtract_kl_to_go(batch: dict[str, Any], kl: Tensor, kl_coeff: float) -> dict[str, Any]:
    """`A_t = A - kl_coeff * (sum of kl from t to the end of the path) / REWARD_SCALE`, without forks.

    This is REINFORCE++'s KL penalty, in the reward of each token instead of in the loss (arXiv 2501.03262, eq. 5). The
    advantage of token t is the normalised return `r - kl_coeff * sum of kl from t on`. The paper takes the mean and the
    standard deviation over the returns of all tokens of the batch; this function takes them over the rewards `r` alone
    and divides the KL by the same deviation. So reward and penalty keep the proportion that `kl_coeff` sets, and the
    deviation is known before the first forward pass, which the KL is not in an update of a single step.

    Args:
        batch: the columns of a pass, in which one leaf passes each loss token, so that `a_pos + a_neg = W A`; and
            REWARD_SCALE, the number by which the rewards were divided (with `baseline="batch"` the batch's std + 1e-6,
            otherwise 1).
        kl: [K], k1 KL of the policy at the start of the update to the reference, without gradient.
        kl_coeff: the coefficient of the penalty.

    Returns:
        the batch with new A_POS and A_NEG, [K].

    Raises:
        ValueError: a generated token is shared by several trajectories.
    """
    parent, end, loss_mask = (batch[name].cpu().numpy() for name in (PARENT, END, LOSS_MASK))
    kl_of_tokens = torch.zeros(len(loss_mask), dtype=torch.float64)
    kl_of_tokens[torch.from_numpy(loss_mask)] = kl.detach().double().cpu()
    to_go = torch.from_numpy(kl_reward_to_go(kl_of_tokens.numpy(), parent, end, loss_mask)[loss_mask])
    penalty = kl_coeff * to_go.to(kl.device) / batch[REWARD_SCALE]
    net = batch[A_POS] + batch[A_NEG] - batch[WEIGHT] * penalty
    return {**batch, A_POS: net.clamp(min=0.0), A_NEG: net.clamp(max=0.0)}


def multiply_by_entropy(batch: dict[str, Any], coeff: float) -> dict[str, Any]:
    """AEPO's entropy-aware advantage: the batch with A_POS and A_NEG, [K], times each token's factor.

    Args:
        batch: the columns of a pass with BEHAVIOR_ENTROPIES, and ENTROPY_STATISTICS of the whole minibatch.
        coeff: the paper's a.
    """
    factor = entropy_factor(batch[BEHAVIOR_ENTROPIES].to(batch[A_POS].dtype), batch[ENTROPY_STATISTICS], coeff)
    return {**batch, A_POS: batch[A_POS] * factor, A_NEG: batch[A_NEG] * factor}
