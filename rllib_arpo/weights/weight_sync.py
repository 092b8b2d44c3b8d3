"""Sends weights to every outdated engine and waits for it: as arrays, or from GPU to GPU by vLLM's transfer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import ray
from ray.exceptions import RayError
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.engine.engine_thread import CALL_TIMEOUT_S
from rllib_arpo.faults import ANSWER_TIMEOUT_S, Failure, restart_env_runner
from rllib_arpo.weights.snapshot import IncomingWeights, WeightSyncError, put_weights

if TYPE_CHECKING:
    import torch
    from ray.actor import ActorHandle
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager
    from torch import Tensor

    from rllib_arpo.engine.vllm.weight_transfer import EngineGroup
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.learner.learner_group import ARPOLearnerGroup
    from rllib_arpo.weights.snapshot import WeightSnapshot

T = TypeVar("T")
#: Env runner -> its answer: None, or a `Failure`. One that does not answer has none.
Answers = dict[int, Any]

logger = logging.getLogger("rllib_arpo")

#: Weights that arrive more slowly count as hung: a gigabit a second, less what a network itself needs.
SLOWEST_BYTES_PER_S = 100e6


def load_timeout_s(num_bytes: int) -> float:
    """Seconds after which an engine that loads weights counts as hung; it may first have to finish a step."""
    return CALL_TIMEOUT_S + num_bytes / SLOWEST_BYTES_PER_S


class WeightSync(ABC):
    """Brings weights from a learner group to the engines of env runners.

    Attributes:
        backend: the backend of vLLM's weight transfer; None: this class does not use it.
    """

    backend: ClassVar[str | None] = None

    def __init__(self, learner_group: ARPOLearnerGroup):
        self._learner_group = learner_group

    def push(self, group: EnvRunnerGroup, runners: list[int] | None = None) -> int:
        """Brings the learner's current weights to the engines, and waits until each has passed the check.

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
        version, size = self._on_first_learner(lambda learner: (learner.weight_version, learner.engine_bytes))
        timeout_s = load_timeout_s(size)
        if group.num_remote_env_runners() == 0:
            runner = group.local_env_runner
            is_behind = runner.weight_version() != version
            if is_behind and (error := runner.load_weights(self._snapshot(), timeout_s)):
                raise WeightSyncError(error.message)
            return version
        manager = group._worker_manager
        versions = manager.foreach_actor("weight_version", remote_actor_ids=runners, timeout_seconds=ANSWER_TIMEOUT_S)
        behind = sorted(answer.actor_id for answer in versions if answer.ok and answer.get() != version)
        if behind:
            restart_failed(manager, behind, self._load(manager, behind, timeout_s))
        return version

    @abstractmethod
    def _load(self, manager: FaultTolerantActorManager, runners: list[int], timeout_s: float) -> Answers:
        """Makes the remote env runners with these ids load the weights; each transport does it differently.

        Args:
            timeout_s: see `ARPOEnvRunner.load_weights`.
        """

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

    def _load(self, manager: FaultTolerantActorManager, runners: list[int], timeout_s: float) -> Answers:
        # Ray replaces a reference by its object for the env runners.
        arguments = {"snapshot": self._on_first_learner(put_snapshot), "timeout_s": timeout_s}
        return _ask(manager, runners, "load_weights", arguments, timeout_s + ANSWER_TIMEOUT_S)


def put_snapshot(learner: ARPOTorchLearner) -> ray.ObjectRef:
    """Runs in the learner: puts its weights into the object store, and only the reference travels."""
    weights = put_weights(learner.module[DEFAULT_MODULE_ID].trained_weights(), learner.engine_dtype)
    return ray.put(replace(learner.weight_snapshot(with_weights=False), weights=weights))


def _ask(
    manager: FaultTolerantActorManager, runners: list[int], method: str, arguments: dict[str, Any], timeout_s: float
) -> Answers:
    """Calls a method of these env runners; returns the answers of those that answer."""
    answers = manager.foreach_actor(method, kwargs=arguments, remote_actor_ids=runners, timeout_seconds=timeout_s)
    return {answer.actor_id: answer.get() for answer in answers if answer.ok}


def restart_failed(manager: FaultTolerantActorManager, runners: list[int], answers: Answers) -> None:
    """Restarts the env runners whose engine died or hangs: a new engine may take the weights.

    Raises:
        WeightSyncError: an engine refused the weights.
    """
    failures = {runner: answer for runner, answer in answers.items() if isinstance(answer, Failure)}
    if refused := [failure.message for failure in failures.values() if not failure.retry]:
        raise WeightSyncError(" ".join(refused))
    silent = {
        runner: Failure(f"Env runner {runner} did not answer while it loaded weights.", retry=True)
        for runner in runners
        if runner not in answers
    }
    for runner, failure in (silent | failures).items():
        if manager.is_actor_healthy(runner):  # Ray restarts the dead ones.
            logger.warning("%s It is restarted.", failure.message)
            restart_env_runner(manager, runner)


class _VLLMTransfer(WeightSync):
    """Transfers weights between CUDA devices to engines whose env runners have processes of their own.

    The learner calls the env runners itself, since engines must receive while it sends.

    Attributes:
        casts: whether the learner casts its weights to the engine's type before they travel.
    """

    backend: ClassVar[str]
    casts: ClassVar[bool]

    def _load(self, manager: FaultTolerantActorManager, runners: list[int], timeout_s: float) -> Answers:
        shapes = self._on_first_learner(
            lambda learner: {name: tuple(weight.shape) for name, weight in _weights(learner).items()}
        )
        limit = timeout_s + ANSWER_TIMEOUT_S
        answers = _ask(manager, runners, "begin_transfer", {"shapes": shapes}, limit)
        restart_failed(manager, runners, answers)
        groups = {runner: answers[runner] for runner in runners if isinstance(answers.get(runner), str)}
        if not groups:
            return answers
        engines = {manager.actors()[runner]: group for runner, group in groups.items()}
        transfer = partial(_transfer, backend=self.backend, casts=self.casts, engines=engines, timeout_s=timeout_s)
        loaded = self._on_first_learner(transfer, timeout_s=limit)
        if isinstance(loaded, str):
            raise WeightSyncError(f"weight_sync={self.backend!r} failed: {loaded}")
        return answers | dict(zip(groups, loaded, strict=True))


class NCCLTransfer(_VLLMTransfer):
    """Transfers weights between separate GPUs."""

    backend, casts = "nccl", True


class IPCTransfer(_VLLMTransfer):
    """Shares weights on the one GPU of learner and engines: the engines read the learner's memory."""

    backend, casts = "ipc", False


def _weights(learner: ARPOTorchLearner) -> dict[str, Tensor]:
    return learner.module[DEFAULT_MODULE_ID].causal_lm.state_dict(keep_vars=True)


def _transfer(
    learner: ARPOTorchLearner, *, backend: str, casts: bool, engines: dict[ActorHandle, str], timeout_s: float
) -> list[Failure | None] | str:
    """Runs in the first learner, or in all that share the model: they assemble each weight, and the first sends it.

    Args:
        engines: env runner -> the name of the group that its engine has joined.

    Returns:
        the answers of the env runners. Errors as text, since an exception would end the actor.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from rllib_arpo.policy.llm_rl_module import COMPUTE_DTYPES
    from rllib_arpo.policy.sharded_state import whole_tensors

    weights = _weights(learner)
    dtype = COMPUTE_DTYPES[learner.config.dtype] if casts else None
    snapshot, pairs = learner.weight_snapshot(with_weights=False), whole_tensors(weights, dtype)
    shares_model = any(isinstance(weight, DTensor) for weight in weights.values())
    answers: list[Failure | None] | str = []
    if not shares_model or dist.get_rank() == 0:
        group = None
        try:
            group = _take_group(learner, engines) or _connect(learner, backend, weights, dtype, [*engines])
            answers = group.send(pairs, partial(arguments_of_load, snapshot, timeout_s))
            learner.engine_groups[frozenset(engines)] = group
        except Exception as error:
            answers = f"{type(error).__name__}: {error}"
            if group is not None:
                with suppress(Exception):
                    group.close()
    # Exhaust `pairs` even after a failure: the other learners still enter every collective.
    for _ in pairs:
        pass
    return answers


def arguments_of_load(snapshot: WeightSnapshot, timeout_s: float, update_info: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of `ARPOEnvRunner.load_weights` for weights that arrive by vLLM's transfer."""
    return replace(snapshot, weights=IncomingWeights(update_info)), timeout_s


def _take_group(learner: ARPOTorchLearner, engines: dict[ActorHandle, str]) -> EngineGroup | None:
    """The group that an earlier transfer made of exactly these engines, if every one is still in it.

    An engine is in the group that it joined last, and after a restart in none. If the group cannot be used, all groups
    with one of these engines are closed.
    """
    groups, members = learner.engine_groups, frozenset(engines)
    left = {others: groups.pop(others) for others in [*groups] if others & members}
    if (kept := left.get(members)) and {*engines.values()} == {kept.name}:
        return kept
    for group in left.values():
        group.close()
    return None


def _connect(
    learner: ARPOTorchLearner,
    backend: str,
    weights: dict[str, Tensor],
    dtype: torch.dtype | None,
    actors: Sequence[ActorHandle],
) -> EngineGroup:
    from rllib_arpo.engine.vllm.weight_transfer import EngineGroup

    sizes = [learner.config.engine_kwargs.get("tensor_parallel_size", 1)] * len(actors)
    return EngineGroup(backend, weights, dtype, partial(_call_all, actors), sizes)


def _call_all(actors: Sequence[ActorHandle], method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Failure | None]:
    """Calls a method of all env runners at once, each with its own arguments.

    It logs a failure as soon as it arrives: the learner may then wait for this engine in NCCL until its limit.
    """
    calls = [getattr(actor, method).remote(*own) for actor, own in zip(actors, arguments, strict=True)]
    answers: dict[ray.ObjectRef, Failure | None] = {}
    waiting = calls
    while waiting:
        [done], waiting = ray.wait(waiting)
        answers[done] = failure = _answer(done)
        if failure is not None:
            logger.error(failure.message)
    return [answers[call] for call in calls]


def _answer(call: ray.ObjectRef) -> Failure | None:
    try:
        return ray.get(call)
    except RayError as error:
        return Failure(f"An env runner died while it loaded weights: {error}", retry=True)
