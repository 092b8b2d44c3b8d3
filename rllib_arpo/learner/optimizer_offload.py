"""Adam's state in the CPU's memory while it is not needed: 8 bytes a parameter less beside the activations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def states_on_device(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> Iterator[None]:
    """Within it the states are on `device`, where the optimizers step; after it on the CPU."""
    optimizers = list(optimizers)
    move_states(optimizers, device)
    try:
        yield
    finally:
        move_states(optimizers, torch.device("cpu"))


def move_states(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> None:
    """Moves what has the shape of its parameter; counters of steps stay where the optimizer wants them."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[name] = value.to(device)
