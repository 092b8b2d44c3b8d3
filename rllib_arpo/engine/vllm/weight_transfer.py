"""Runs the learner's side of vLLM's weight transfer (from vLLM 0.32 on).

vLLM does the work on the GPU: "nccl" broadcasts to engines on other GPUs, "ipc" shares the learner's memory with
engines in other processes on the same GPU.
"""

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import ray
import torch
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import TrainerInitInfo

#: vLLM 0.33 reads `WeightSource.metadata` as a property and iterates over `iter_full()`; before, it calls `metadata()`
#: and iterates over the source itself.
_metadata_method = cached_property if hasattr(WeightSource, "iter_full") else (lambda method: method)


class WeightStream(WeightSource):
    """Weights by name, for one transfer; tied ones under each of their names (vLLM's `ModuleSource` omits them).

    Args:
        metadata: describes the tensors of `pairs`, in the same order.
        pairs: (name, whole tensor), each made when it is sent.
    """

    def __init__(self, metadata: Sequence[ParamMeta], pairs: Iterator[tuple[str, torch.Tensor]]):
        self._metadata = list(metadata)
        self._pairs = pairs

    @_metadata_method
    def metadata(self) -> list[ParamMeta]:
        return self._metadata

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._pairs

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.iter_full()


class EngineGroupClient:
    """vLLM's `VLLMWeightSyncClient`: makes all engines take the same step of a transfer and waits for all of them.

    Args:
        call: `(method, arguments of each engine)`; calls `VLLMEngine.transfer_weights` on all engines at once, and
            raises if one fails.
        world_sizes: the number of GPUs of each engine.
    """

    def __init__(self, call: Callable[[str, Sequence[dict[str, Any]]], None], world_sizes: Sequence[int]):
        self._call = call
        self._world_sizes = list(world_sizes)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Shifts vLLM's ranks, which count within one engine: each engine's ranks follow the previous engine's."""
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
        """Passes no version on: we set the version when the weights are verified."""
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


#: Backend -> the initial arguments of vLLM's trainer engine, given the total number of GPUs of all engines.
INIT_INFOS: dict[str, Callable[[int], TrainerInitInfo]] = {"nccl": _nccl, "ipc": _ipc}


def send_weights(
    backend: str,
    weights: Mapping[str, torch.Tensor],
    pairs: Iterator[tuple[str, torch.Tensor]],
    call: Callable[[str, Sequence[dict[str, Any]]], None],
    world_sizes: Sequence[int],
    dtype: torch.dtype | None,
) -> None:
    """Sends weights to all engines. A connection lasts for one transfer, since engines come and go between transfers.

    Args:
        weights: Hugging Face name -> tensor on the learner's GPU, or its part of a tensor.
        pairs: the same weights as whole tensors, to be sent: `whole_tensors(weights, dtype)`.
        call, world_sizes: see `EngineGroupClient`.
        dtype: the type of `pairs`; None: each weight's own.
    """
    client = EngineGroupClient(call, world_sizes)
    metadata = [ParamMeta(name, dtype or weight.dtype, tuple(weight.shape)) for name, weight in weights.items()]
    device = next(iter(weights.values())).device
    # vLLM sends from the current device; -1 changes nothing.
    with torch.cuda.device(device.index if device.type == "cuda" else -1):
        trainer = WeightTransferTrainerFactory.trainer_init(
            INIT_INFOS[backend](sum(world_sizes)), client=client, source=WeightStream(metadata, pairs)
        )
        trainer.send_weights()
        client.shutdown_weight_transfer_engine()
        trainer.shutdown()
