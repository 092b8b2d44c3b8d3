"""Values of states, linear in a model's hidden states, by least squares (docs/design.md, "Values of states").

S: states, D: the width of the hidden states. All in float64, so that sums over many states stay exact.
"""

import torch
from torch import Tensor

#: The factor by which each update discounts the sums of earlier updates.
DECAY = 0.9
#: The weight of the prior, value 0, in leaves.
PRIOR_LEAVES = 1.0


def state_features(states: Tensor) -> Tensor:
    """Hidden states [S, D] -> [S, D + 1]: each scaled to length 1, and a constant 1, whose weight is the bias."""
    scaled = torch.nn.functional.normalize(states.double(), dim=1)
    return torch.cat([scaled, scaled.new_ones(len(scaled), 1)], dim=1)


def regression_sums(features: Tensor, targets: Tensor, leaves: Tensor) -> Tensor:
    """`sum_s leaves_s x_s (x_s, y_s)`, [D + 1, D + 2]: all that least squares need to know of the states.

    Args:
        features: x, [S, D + 1].
        targets: y, [S].
        leaves: [S], how much each state counts.
    """
    return (features * leaves[:, None]).T @ torch.cat([features, targets[:, None]], dim=1)


def value_weights(sums: Tensor) -> Tensor:
    """The w, [D + 1], that minimises `sum_s leaves_s (w x_s - y_s)^2 + PRIOR_LEAVES |w|^2`; 0 if the sums are."""
    moments, products = sums[:, :-1], sums[:, -1]
    prior = torch.eye(len(moments), dtype=moments.dtype, device=moments.device).mul_(PRIOR_LEAVES)
    return torch.linalg.solve(moments + prior, products)
