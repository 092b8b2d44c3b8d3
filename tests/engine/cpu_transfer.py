"""A backend of vLLM's weight transfer without a GPU: vLLM's own "ipc", but for the handles, which become arrays.

`register` makes it known, in every process that takes part; it imports vLLM.
"""

import importlib
from dataclasses import dataclass
from typing import ClassVar

import torch.distributed as dist

from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.weights import WEIGHT_SYNCS
from rllib_arpo.weights.weight_sync import NCCLTransfer

BACKEND = "cpu_test"


class CPUTransfer(NCCLTransfer):
    backend = BACKEND


def register() -> None:
    """Makes the backend known to this package and to vLLM."""
    WEIGHT_SYNCS[BACKEND] = CPUTransfer
    # First: it sets the variables that vLLM reads when it is imported.
    learners_side = importlib.import_module("rllib_arpo.engine.vllm.weight_transfer")
    import torch
    from vllm.distributed.weight_transfer import (
        TrainerWeightTransferEngine,
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo
    from vllm.distributed.weight_transfer.ipc_engine import (
        IPCTrainerInitInfo,
        IPCTrainerWeightTransferEngine,
        IPCWeightTransferEngine,
    )

    @dataclass
    class InitInfo(IPCTrainerInitInfo):
        backend: ClassVar[str] = BACKEND

    @dataclass
    class UpdateInfo(WeightTransferUpdateInfo):
        weights: list

    class Trainer(IPCTrainerWeightTransferEngine):
        init_info_cls = InitInfo

        def __init__(self, *, client, source, is_sender=True, **_packing):
            TrainerWeightTransferEngine.__init__(self, client=client, source=source, is_sender=is_sender)

        def _send(self, source) -> None:
            weights = [(name, weight.numpy()) for name, weight in source]
            assert [(m.name, m.shape) for m in source.metadata()] == [(name, array.shape) for name, array in weights]
            self.client.update_weights({"weights": weights})

        @staticmethod
        def _post_send_sync() -> None:
            pass

    class Engine(IPCWeightTransferEngine):
        update_info_cls = UpdateInfo

        def receive_weights(self, update_info) -> None:
            self.model.load_weights((name, torch.tensor(array)) for name, array in update_info.weights)

    learners_side.INIT_INFOS[BACKEND] = lambda _num_workers: InitInfo(rank=0)
    WeightTransferEngineFactory.register_engine(BACKEND, Engine)
    WeightTransferTrainerFactory.register_engine(BACKEND, Trainer)


class SendingLearner(ARPOTorchLearner):
    """Only the first one sends."""

    def build(self):
        super().build()
        if dist.get_rank() == 0:
            register()


class ReceivingEnvRunner(ARPOEnvRunner):
    def __init__(self, config, **kwargs):
        register()
        super().__init__(config, **kwargs)
