"""vLLM's weight transfer without a GPU: its own "nccl", but for NCCL, in whose place weights pass through a TCP store.

Ranks, rendezvous, connections, worker processes and the order of all calls are vLLM's. `register` makes it known in
every process that takes part; it imports vLLM.
"""

import importlib
from dataclasses import replace

import torch
import torch.distributed as dist

from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.weights import WEIGHT_SYNCS
from rllib_arpo.weights.weight_sync import NCCLTransfer

NAME = "cpu_test"


class CPUTransfer(NCCLTransfer):
    """Under a name of its own, since "nccl" is only valid with GPUs."""


class StoreGroup:
    """Stands for a `PyNcclCommunicator`."""

    def __init__(self, host, port, rank, world_size, _device=None, **_named_device):
        from vllm.distributed.utils import StatelessProcessGroup

        self._group = StatelessProcessGroup.create(host, port, rank, world_size, store_timeout=60)

    def broadcast(self, tensor, src, stream=None):
        tensor.copy_(self._group.broadcast(tensor, src))

    def destroy(self):
        del self._group


def register() -> None:
    """Makes the transfer known to this package and to vLLM."""
    WEIGHT_SYNCS[NAME] = CPUTransfer
    # First: it sets the variables that vLLM reads when it is imported.
    learners_side = importlib.import_module("rllib_arpo.engine.vllm.weight_transfer")
    from vllm.distributed.weight_transfer import nccl_common

    nccl_common.stateless_init_process_group = StoreGroup
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *_device: None
    torch.cuda.current_stream = lambda *_device: None
    # Packed weights need CUDA's streams.
    learners_side.INIT_INFOS["nccl"] = lambda num_workers: replace(learners_side._nccl(num_workers), packed=False)


def register_workers(engine) -> None:
    """The same in vLLM's workers, which may have processes of their own."""
    engine._llm.collective_rpc(lambda _worker: register())


class SendingLearner(ARPOTorchLearner):
    """Only the first one sends."""

    def build(self):
        super().build()
        if not dist.is_initialized() or dist.get_rank() == 0:
            register()


class ReceivingEnvRunner(ARPOEnvRunner):
    def __init__(self, config, **kwargs):
        register()
        super().__init__(config, **kwargs)
        self._engine_thread.call(register_workers, self.engine)
