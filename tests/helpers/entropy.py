"""The entropy of the next token, slow and obvious: what the fast ones are compared with."""

import torch
from torch import Tensor


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """`-sum p ln p` with `p = softmax(logits / temperature)`: [..., V] -> [...] nats, summed in fp64, in fp32."""
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    return -torch.special.xlogy(probabilities, probabilities).sum(dim=-1).float()
