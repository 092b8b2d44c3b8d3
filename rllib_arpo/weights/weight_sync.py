"""Sends weights to every outdated engine and waits for it: as arrays, or from GPU to GPU by vLLM's transfer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import ray
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.faults import ANSWER_TIMEOUT_S, Failure, restart_env_runner
from rllib_arpo.weights.snapshot import WeightSyncError, put_weights

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager, RemoteCallResults
    from torch import Tensor

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.learner.learner_group import ARPOLearnerGroup
    from rllib_arpo.weights.snapshot import WeightSnapshot

T = TypeVar("T")

logger = logging.getLogger("rllib_arpo")

#: Seconds after which an env runner that loads weights counts as hung.
LOAD_TIMEOUT_S = 600.0
#: Seconds after which a transfer counts as hung: an env runner that dies meanwhile leaves the learner waiting in NCCL.
TRANSFER_TIMEOUT_S = 600.0


class WeightSync(ABC):
    """Brings weights from a learner group to the engines of env runners.

    Attributes:
        backend: the backend of vLLM's weight transfer; None: this class does not use it.
    """

    backend: ClassVar[str | None] = None

    def __init__(self, learner_group: ARPOLearnerGroup):
        self._learner_group = learner_group

    def push(self, group: EnvRunnerGroup, runners: list[int] | None = None) -> int:
        """Brings the learner's current weights to the engines and waits until each computes with them.

        Running requests continue with the new weights. An env runner that dies meanwhile is left out: Ray restarts it
        without weights, and another call brings them.

        Args:
            group: the training or the evaluation env runners.
            runners: ids of remote env runners; None: all healthy ones.

        Returns:
            The version of the weights (`ARPOTorchLearner.weight_version`).

        Raises:
            WeightSyncError: with version, env runner and cause.
        """
        version = self._on_first_learner(lambda learner: learner.weight_version)
        if group.num_remote_env_runners() == 0:
            runner = group.local_env_runner
            is_behind = runner.weight_version() != version
            if is_behind and (error := runner.load_weights(self._snapshot())):
                raise WeightSyncError(error.message)
            return version
        manager = group._worker_manager
        versions = manager.foreach_actor("weight_version", remote_actor_ids=runners, timeout_seconds=ANSWER_TIMEOUT_S)
        behind = [answer.actor_id for answer in versions if answer.ok and answer.get() != version]
        if behind:
            # Ray replaces a reference by its object for the env runners.
            snapshot = self._publish(manager, behind)
            answers = manager.foreach_actor(
                "load_weights", kwargs={"snapshot": snapshot}, remote_actor_ids=behind, timeout_seconds=LOAD_TIMEOUT_S
            )
            restart_failed(manager, behind, answers)
        return version

    @abstractmethod
    def _publish(self, manager: FaultTolerantActorManager, runners: list[int]) -> ray.ObjectRef | WeightSnapshot:
        """Makes the snapshot that the remote env runners with these ids load; each transport does it differently."""

    def _snapshot(self) -> WeightSnapshot:
        """The snapshot, with arrays, for an env runner in the driver's process.

        If the learner is in the same process, only the engine copies the weights.
        """
        if self._learner_group.is_local:
            return self._on_first_learner(lambda learner: learner.weight_snapshot())
        return ray.get(self._on_first_learner(put_snapshot))

    def _on_first_learner(self, function: Callable[[ARPOTorchLearner], T], timeout_s: float | None = None) -> T:
        try:
            return self._learner_group.on_first(function, timeout_s)
        except TimeoutError as error:
            raise WeightSyncError(str(error)) from error


class InProcessReload(WeightSync):
    """Sends the weights as arrays through Ray's object store; works with every engine and device.

    A remote learner puts its weights into the object store itself, part by part (`put_weights`), and only the reference
    passes through the driver.
    """

    def _publish(self, manager: FaultTolerantActorManager, runners: list[int]) -> ray.ObjectRef:
        return self._on_first_learner(put_snapshot)


def put_snapshot(learner: ARPOTorchLearner) -> ray.ObjectRef:
    """Runs in the learner: puts its weights into the object store, and only the reference travels."""
    weights = put_weights(learner.module[DEFAULT_MODULE_ID].trained_weights(), learner.engine_dtype)
    return ray.put(replace(learner.weight_snapshot(with_weights=False), weights=weights))


def restart_failed(manager: FaultTolerantActorManager, runners: list[int], answers: RemoteCallResults) -> None:
    """Restarts the env runners whose engine died or hangs: a new engine may take the weights.

    Raises:
        WeightSyncError: an engine refused the weights.
    """
    errors = {answer.actor_id: answer.get() for answer in answers if answer.ok}
    if refused := [error.message for error in errors.values() if error is not None and not error.retry]:
        raise WeightSyncError(" ".join(refused))
    for runner in filter(manager.is_actor_healthy, runners):  # Ray restarts the dead ones.
        silent = Failure(f"Env runner {runner} did not answer while it loaded weights.", retry=True)
        error = errors.get(runner, silent)
        if error is not None:
            logger.warning("%s It is restarted.", error.message)
            restart_env_runner(manager, runner)


class _VLLMTransfer(WeightSync):
    """Transfers weights between CUDA devices to idle engines, whose env runners have processes of their own.

    The snapshot that env runners then load has no weights: these have arrived before.

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
    """Transfers weights between separate GPUs."""

    backend, casts = "nccl", True


class IPCTransfer(_VLLMTransfer):
    """Shares weights on the one GPU of learner and engines: the engines read the learner's memory."""

    backend, casts = "ipc", False


def _weights(learner: ARPOTorchLearner) -> dict[str, Tensor]:
    return learner.module[DEFAULT_MODULE_ID].causal_lm.state_dict(keep_vars=True)


def _transfer(
    learner: ARPOTorchLearner, *, backend: str, casts: bool, actors: Sequence[ActorHandle]
) -> WeightSnapshot | str:
    """Runs in the first learner, or in all that share the model: they assemble each weight, and the first sends it.

    It returns errors as text, since an exception would end the actor.
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
        failures = [failure]
        dist.broadcast_object_list(failures, src=0)
        failure = failures[0]
    return failure or learner.weight_snapshot(with_weights=False)


def _call(actors: Sequence[ActorHandle], method: str, arguments: Sequence[dict[str, Any]]) -> None:
    """Calls a method of the engines of all env runners at once, each with its own arguments."""
    calls = [actor.transfer_weights.remote(method, own) for actor, own in zip(actors, arguments, strict=True)]
    if found := [error for error in ray.get(calls) if error is not None]:
        raise RuntimeError(" ".join(error.message for error in found))
