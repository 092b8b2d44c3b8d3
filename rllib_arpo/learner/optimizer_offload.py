"""Keeps Adam's state in the CPU's memory while it is not needed, which frees 8 bytes per parameter on the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def states_on_device(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> Iterator[None]:
    """Within this context the states are on `device`, where the optimizers step; afterwards on the CPU."""
    optimizers = list(optimizers)
    move_states(optimizers, device)
    try:
        yield
    finally:
        move_states(optimizers, torch.device("cpu"))


def move_states(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> None:
    """Moves the tensors that have their parameter's shape; step counters stay where the optimizer needs them."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[name] = value.to(device)
