"""AdamW with moments in the CPU's memory: a step brings them to the device for a few parameters at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rllib_arpo.policy.sharded_state import scatter_from_first, split_like

#: Parameters, in numbers, whose moments are on the device together; a larger parameter is alone.
NUMBERS_AT_A_TIME = 2**26
_MOMENTS = ("exp_avg", "exp_avg_sq")


class OffloadedAdamW(torch.optim.AdamW):
    """Between steps its state holds this learner's part of the moments, in pinned memory if parameters are on a GPU."""

    #: `load_optimizer_state` passes whole arrays.
    takes_arrays = True

    def __init__(self, parameters: Sequence[Tensor], **settings: Any):
        super().__init__(parameters, **settings)
        self._homes: dict[Tensor, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        [group] = self.param_groups
        parameters = group["params"]
        try:
            for some in _in_parts(parameters):
                group["params"] = some
                for parameter in some:
                    self._fetch(parameter)
                super().step(closure)
                for parameter in some:
                    self._put_away(parameter)
        finally:
            group["params"] = parameters
        self._wait()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Brings one parameter's moments after the other to the device, where all together may not fit."""
        [group] = self.param_groups
        for index, values in state_dict["state"].items():
            parameter = group["params"][index]
            step = values["step"].to(parameter.device) if group["fused"] else values["step"]
            moments = {name: scatter_from_first(values[name], parameter) for name in _MOMENTS}
            self.state[parameter] = {"step": step, **moments}
            self._put_away(parameter)
        self._wait()

    def _wait(self) -> None:
        """Copies to pinned memory may still be under way."""
        device = self.param_groups[0]["params"][0].device
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    def _fetch(self, parameter: Tensor) -> None:
        for name in _MOMENTS:
            if name in self.state[parameter]:
                self.state[parameter][name] = split_like(self.state[parameter][name], parameter)

    def _put_away(self, parameter: Tensor) -> None:
        homes = self._homes.setdefault(parameter, {})
        for name in _MOMENTS:
            if name not in self.state[parameter]:  # Without a gradient.
                continue
            own = _own(self.state[parameter][name])
            if name not in homes:
                homes[name] = torch.empty_like(own, device="cpu", pin_memory=own.device.type == "cuda")
            self.state[parameter][name] = homes[name].copy_(own, non_blocking=True)


def _own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _in_parts(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive parameters of at most `NUMBERS_AT_A_TIME` numbers on this learner, at least one."""
    part: list[Tensor] = []
    size = 0
    for parameter in parameters:
        numbers = _own(parameter).numel()
        if part and size + numbers > NUMBERS_AT_A_TIME:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += numbers
    yield part
