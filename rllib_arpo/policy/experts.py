"""The experts of a mixture under autocast: transformers' grouped products, in autocast's type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

#: The name under which the function is registered: `experts_implementation=AUTOCAST_EXPERTS`.
AUTOCAST_EXPERTS = "rllib_arpo_autocast"


def experts_implementation(dtype: torch.dtype) -> str:
    """The way in which experts with weights of `dtype` are computed, as transformers names it after this call."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(AUTOCAST_EXPERTS, autocast_experts_forward)
    # torch has no grouped products in fp64: transformers' loop over the experts.
    return "eager" if dtype == torch.float64 else AUTOCAST_EXPERTS


def autocast_experts_forward(experts: nn.Module, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """[T, D] hidden states of tokens and their K experts and weights, [T, K] each -> [T, D].

    torch's autocast leaves grouped products out: with fp32 weights they would be made in fp32, slower and unlike the
    engine's.
    """
    from transformers.integrations.moe import grouped_mm_experts_forward

    device_type = hidden_states.device.type
    if torch.is_autocast_enabled(device_type):
        experts = _Cast(experts, torch.get_autocast_dtype(device_type))
    return grouped_mm_experts_forward(experts, hidden_states, index, weights)


class _Cast:
    """A module as its function sees it, with parameters of another type."""

    def __init__(self, module: Any, dtype: torch.dtype):
        self._module = module
        self._dtype = dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return value.to(self._dtype) if isinstance(value, nn.Parameter) else value
