"""The learner's side of vLLM's weight transfer (as of vLLM 0.32): its trainer engines, and how they reach the engines.

What happens on the GPU is vLLM's own: "nccl" broadcasts to engines on other GPUs, "ipc" shows the learner's memory to
engines on the same GPU, in other processes.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
import torch
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import TrainerInitInfo


class StateDictSource(WeightSource):
    """A module's weights under their names, tied ones under each of theirs (vLLM's `ModuleSource` leaves them out)."""

    def __init__(self, weights: Mapping[str, torch.Tensor]):
        self._weights = {name: weight.detach() for name, weight in weights.items()}

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self._weights.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._weights.items())


class EngineGroupClient:
    """vLLM's `VLLMWeightSyncClient`: has all engines take the same step of a transfer and waits for all of them.

    Args:
        call: calls `VLLMEngine.transfer_weights(method, arguments)` on engine number i, for each i, all at once; raises
            if it fails on any.
        world_sizes: GPUs of each engine.
    """

    def __init__(self, call: Callable[[str, Sequence[dict[str, Any]]], None], world_sizes: Sequence[int]):
        self._call = call
        self._world_sizes = list(world_sizes)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """vLLM counts ranks within one engine: where there are ranks, each engine's begin after those before it."""
        first = itertools.accumulate(self._world_sizes[:-1], initial=0)
        infos = [
            init_info | {"rank_offset": init_info["rank_offset"] + offset} if "rank_offset" in init_info else init_info
            for offset in first
        ]
        self._call("init_weight_transfer_engine", [{"init_info": info} for info in infos])

    def start_weight_update(self) -> None:
        self._call_all("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call_all("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Our versions are set where the weights are verified."""
        self._call_all("finish_weight_update")

    def shutdown_weight_transfer_engine(self) -> None:
        self._call_all("shutdown_weight_transfer_engine")

    def _call_all(self, method: str, **arguments: Any) -> None:
        self._call(method, [arguments] * len(self._world_sizes))


def _nccl(num_workers: int) -> TrainerInitInfo:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = ray.util.get_node_ip_address()
    return NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=1 + num_workers)


def _ipc(_num_workers: int) -> TrainerInitInfo:
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=0)


INIT_INFOS: dict[str, Callable[[int], TrainerInitInfo]] = {"nccl": _nccl, "ipc": _ipc}
"""Backend -> what vLLM's trainer engine begins with, given the number of GPUs of all engines together."""


def send_weights(
    backend: str,
    weights: Mapping[str, torch.Tensor],
    call: Callable[[str, Sequence[dict[str, Any]]], None],
    world_sizes: Sequence[int],
) -> None:
    """Brings `weights` into all engines. A connection lasts for one transfer: engines come and go between two.

    Args:
        weights: Hugging Face name -> tensor, on the learner's GPU.
        call, world_sizes: see `EngineGroupClient`.
    """
    client = EngineGroupClient(call, world_sizes)
    device = next(iter(weights.values())).device
    # vLLM sends from the current device; -1 changes nothing.
    with torch.cuda.device(device.index if device.type == "cuda" else -1):
        trainer = WeightTransferTrainerFactory.trainer_init(
            INIT_INFOS[backend](sum(world_sizes)), client=client, source=StateDictSource(weights)
        )
        trainer.send_weights()
        client.shutdown_weight_transfer_engine()
        trainer.shutdown()
