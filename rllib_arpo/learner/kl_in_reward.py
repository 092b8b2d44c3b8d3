"""REINFORCE++'s KL penalty: in the reward of each token instead of in the loss (arXiv 2501.03262, eq. 5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rllib_arpo.connectors.columns import A_NEG, A_POS, END, LOSS_MASK, PARENT, WEIGHT
from rllib_arpo.core.advantages import kl_reward_to_go


def subtract_kl_to_go(batch: dict[str, Any], kl: Tensor, kl_coeff: float) -> dict[str, Any]:
    """`A_t = A - kl_coeff * sum of kl from t to the end of the path`, for trajectories that share only the prompt.

    Args:
        batch: the columns of a pass, in which one leaf passes each loss token, so that `a_pos + a_neg = W A`.
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
    net = batch[A_POS] + batch[A_NEG] - kl_coeff * batch[WEIGHT] * to_go.to(kl.device)
    return {**batch, A_POS: net.clamp(min=0.0), A_NEG: net.clamp(max=0.0)}
