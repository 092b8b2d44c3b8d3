"""Runs the learner's side of vLLM's weight transfer (from vLLM 0.32 on).

vLLM does the work on the GPU: "nccl" broadcasts to engines on other GPUs, "ipc" shares the learner's memory with
engines in other processes on the same GPU.
"""

import itertools
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import ray
import torch
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import TrainerInitInfo

from rllib_arpo.faults import Failure

#: vLLM 0.33 reads `WeightSource.metadata` as a property and iterates over `iter_full()`; before, it calls `metadata()`
#: and iterates over the source itself.
_metadata_method = cached_property if hasattr(WeightSource, "iter_full") else (lambda method: method)


class WeightStream(WeightSource):
    """Weights by name; tied ones under each of their names (vLLM's `ModuleSource` omits them).

    Attributes:
        pairs: (name, whole tensor), each made when it is sent; for one transfer.

    Args:
        metadata: describes the tensors of `pairs`, in the same order.
    """

    def __init__(self, metadata: Sequence[ParamMeta]):
        self._metadata = list(metadata)
        self.pairs: Iterator[tuple[str, torch.Tensor]] = iter(())

    @_metadata_method
    def metadata(self) -> list[ParamMeta]:
        return self._metadata

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.pairs

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.iter_full()


class EngineGroup:
    """Engines that are connected with this learner, for any number of transfers.

    vLLM's trainer reaches them through it (`VLLMWeightSyncClient`). A transfer is a single call of each engine, so an
    engine is held from its first weight to its last one: its requests wait, and go on with the new weights.

    Attributes:
        name: differs from the names of all other groups; env runners remember it.
    """

    def __init__(
        self,
        backend: str,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype | None,
        call: Callable[[str, Sequence[tuple[Any, ...]]], list[Failure | None]],
        world_sizes: Sequence[int],
    ):
        """Connects the engines.

        Args:
            backend: a key of `INIT_INFOS`.
            weights: Hugging Face name -> tensor on the learner's GPU, or its part of a tensor.
            dtype: the type in which they travel; None: each weight's own.
            call: `(method, arguments of each env runner)`; calls all env runners at once and returns their answers.
            world_sizes: the number of GPUs of each engine.

        Raises:
            RuntimeError: an engine did not join.
        """
        self.name = uuid.uuid4().hex
        self._call, self._world_sizes = call, list(world_sizes)
        metadata = [ParamMeta(name, dtype or weight.dtype, tuple(weight.shape)) for name, weight in weights.items()]
        self._source = WeightStream(metadata)
        device = next(iter(weights.values())).device
        # vLLM sends from the current device; -1 changes nothing.
        self._device = device.index if device.type == "cuda" else -1
        with torch.cuda.device(self._device):
            self._trainer = WeightTransferTrainerFactory.trainer_init(
                INIT_INFOS[backend](sum(world_sizes)), client=self, source=self._source
            )

    def send(
        self, pairs: Iterator[tuple[str, torch.Tensor]], arguments: Callable[[dict[str, Any]], tuple[Any, ...]]
    ) -> list[Failure | None]:
        """Sends weights to all engines; returns the answers of their env runners.

        Args:
            pairs: (name, whole tensor) of all weights in `dtype`: `whole_tensors`.
            arguments: makes those of `ARPOEnvRunner.load_weights` from vLLM's `update_info`.
        """
        self._source.pairs, self._arguments = pairs, arguments
        with torch.cuda.device(self._device):
            self._trainer.send_weights()
        return self._answers

    def close(self) -> None:
        self._trainer.shutdown()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Shifts vLLM's ranks, which count within one engine: each engine's ranks follow the previous engine's."""
        first = itertools.accumulate(self._world_sizes[:-1], initial=0)
        infos = [
            init_info | {"rank_offset": init_info["rank_offset"] + offset} if "rank_offset" in init_info else init_info
            for offset in first
        ]
        answers = self._call("join_transfer", [(self.name, info) for info in infos])
        if failures := [failure.message for failure in answers if failure is not None]:
            raise RuntimeError(" ".join(failures))

    def start_weight_update(self) -> None:
        """Does nothing: an engine starts, updates and finishes in one call (`VLLMEngine.receive_weights`)."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._answers = self._call("load_weights", [self._arguments(update_info)] * len(self._world_sizes))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Does nothing, like `start_weight_update`."""


def _nccl(num_workers: int) -> TrainerInitInfo:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = ray.util.get_node_ip_address()
    return NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=1 + num_workers)


def _ipc(_num_workers: int) -> TrainerInitInfo:
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=0, packed=False)  # Packed ones come in several calls.


#: Backend -> the initial arguments of vLLM's trainer engine, given the total number of GPUs of all engines.
INIT_INFOS: dict[str, Callable[[int], TrainerInitInfo]] = {"nccl": _nccl, "ipc": _ipc}
