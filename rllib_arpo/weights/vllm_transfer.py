"""Weights from GPU to GPU by vLLM's weight transfer, without a way through the CPU or Ray's object store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import ray
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.weights.snapshot import WeightSyncError
from rllib_arpo.weights.weight_sync import LOAD_TIMEOUT_S, WeightSync, restart_failed

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager
    from torch import Tensor

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.weights.snapshot import WeightSnapshot

#: Seconds after which a transfer is given up: an env runner that dies within it leaves the learner waiting in NCCL.
TRANSFER_TIMEOUT_S = 600.0


class _VLLMTransfer(WeightSync):
    """Between CUDA devices, for env runners in processes of their own; the engines must be idle.

    The snapshot that env runners load has no weights: when it comes, they have arrived.

    Attributes:
        casts: whether the learner casts its weights to the engine's type before they travel.
    """

    backend: ClassVar[str]
    casts: ClassVar[bool]

    def _publish(self, manager: FaultTolerantActorManager, runners: list[int]) -> WeightSnapshot:
        shapes = self._on_first_learner(
            lambda learner: {name: tuple(weight.shape) for name, weight in _weights(learner).items()}
        )
        answers = manager.foreach_actor(
            "begin_transfer", kwargs={"shapes": shapes}, remote_actor_ids=runners, timeout_seconds=LOAD_TIMEOUT_S
        )
        restart_failed(manager, runners, answers)
        actors = [manager.actors()[runner] for runner in runners if manager.is_actor_healthy(runner)]
        if not actors:
            raise WeightSyncError(f"weight_sync={self.backend!r}: no env runner is left to take the weights.")
        transfer = partial(_transfer, backend=self.backend, casts=self.casts, actors=actors)
        snapshot = self._on_first_learner(transfer, timeout_s=TRANSFER_TIMEOUT_S)
        if isinstance(snapshot, str):
            raise WeightSyncError(f"weight_sync={self.backend!r} failed: {snapshot}")
        return snapshot


class NCCLTransfer(_VLLMTransfer):
    """Between separate GPUs."""

    backend, casts = "nccl", True


class IPCTransfer(_VLLMTransfer):
    """On one GPU that learner and engines share: the engines read the learner's own memory, so nothing travels."""

    backend, casts = "ipc", False


def _weights(learner: ARPOTorchLearner) -> dict[str, Tensor]:
    return learner.module[DEFAULT_MODULE_ID].causal_lm.state_dict(keep_vars=True)


def _transfer(
    learner: ARPOTorchLearner, *, backend: str, casts: bool, actors: Sequence[ActorHandle]
) -> WeightSnapshot | str:
    """Runs in the first learner, or in all that share the model: they assemble each weight, and the first sends it.

    What went wrong is a value, since an exception would end the actor.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from rllib_arpo.policy.llm_rl_module import COMPUTE_DTYPES
    from rllib_arpo.policy.sharded_state import whole_tensors

    weights = _weights(learner)
    dtype = COMPUTE_DTYPES[learner.config.dtype] if casts else None
    pairs = whole_tensors(weights, dtype)
    shares_model = any(isinstance(weight, DTensor) for weight in weights.values())
    failure = None
    if not shares_model or dist.get_rank() == 0:
        sizes = [learner.config.engine_kwargs.get("tensor_parallel_size", 1)] * len(actors)
        try:
            from rllib_arpo.engine.vllm.weight_transfer import send_weights

            send_weights(backend, weights, pairs, partial(_call, actors), sizes, dtype)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
    # Exhaust `pairs` even after a failure: the other learners still enter every collective.
    for _ in pairs:
        pass
    if shares_model:
        told = [failure]
        dist.broadcast_object_list(told, src=0)
        failure = told[0]
    return failure or learner.weight_snapshot(with_weights=False)


def _call(actors: Sequence[ActorHandle], method: str, arguments: Sequence[dict[str, Any]]) -> None:
    """Calls a method of the engines of all env runners at once, each with its own arguments."""
    calls = [actor.transfer_weights.remote(method, own) for actor, own in zip(actors, arguments, strict=True)]
    if found := [error for error in ray.get(calls) if error is not None]:
        raise RuntimeError(" ".join(error.message for error in found))
