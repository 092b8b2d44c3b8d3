"""Sends a snapshot to every engine with outdated weights and waits for it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import ray
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.faults import Failure, restart_env_runner
from rllib_arpo.weights.snapshot import WeightSyncError, put_weights

if TYPE_CHECKING:
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager, RemoteCallResults

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.learner.learner_group import ARPOLearnerGroup
    from rllib_arpo.weights.snapshot import WeightSnapshot

T = TypeVar("T")

logger = logging.getLogger("rllib_arpo")

#: Seconds after which an env runner that loads weights counts as hung.
LOAD_TIMEOUT_S = 600.0
#: Seconds after which an env runner that does not answer with its version counts as dead.
ANSWER_TIMEOUT_S = 120.0


class WeightSync(ABC):
    """One way of bringing weights from a learner group to the engines of env runners.

    Attributes:
        backend: of vLLM's weight transfer; None: it is not used.
    """

    backend: ClassVar[str | None] = None

    def __init__(self, learner_group: ARPOLearnerGroup):
        self._learner_group = learner_group

    def push(self, group: EnvRunnerGroup, runners: list[int] | None = None) -> int:
        """Brings the learner's current weights to the engines and waits until each computes with them.

        Requests that are running go on with the new weights. An env runner that dies meanwhile is left out: Ray
        restarts it without weights, and another call brings them.

        Args:
            group: the training or the evaluation env runners.
            runners: ids of the remote env runners that are meant; None: all that are healthy.

        Returns:
            The version of the weights (`ARPOTorchLearner.weight_version`).

        Raises:
            WeightSyncError: naming version, env runner and cause.
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
            # Ray hands the env runners what a reference stands for.
            snapshot = self._publish(manager, behind)
            answers = manager.foreach_actor(
                "load_weights", kwargs={"snapshot": snapshot}, remote_actor_ids=behind, timeout_seconds=LOAD_TIMEOUT_S
            )
            restart_failed(manager, behind, answers)
        return version

    @abstractmethod
    def _publish(self, manager: FaultTolerantActorManager, runners: list[int]) -> ray.ObjectRef | WeightSnapshot:
        """The snapshot that the remote env runners with these ids shall load; every transport makes its own."""

    def _snapshot(self) -> WeightSnapshot:
        """The snapshot for an env runner in the driver's process: the arrays, which no transport has to bring there.

        With a learner in the same process only the engine copies the weights.
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
    """Runs in the learner: puts its weights into the object store, so that only the reference travels."""
    weights = put_weights(learner.module[DEFAULT_MODULE_ID].trained_weights(), learner.engine_dtype)
    return ray.put(replace(learner.weight_snapshot(with_weights=False), weights=weights))


def restart_failed(manager: FaultTolerantActorManager, runners: list[int], answers: RemoteCallResults) -> None:
    """Restarts the env runners whose engine died or hangs: a new engine may take the weights.

    Raises:
        WeightSyncError: weights were refused.
    """
    errors = {answer.actor_id: answer.get() for answer in answers if answer.ok}
    if refused := [error.message for error in errors.values() if error is not None and not error.retry]:
        raise WeightSyncError(" ".join(refused))
    for runner in filter(manager.is_actor_healthy, runners):  # Ray restarts those that died.
        silent = Failure(f"Env runner {runner} did not answer while it loaded weights.", retry=True)
        error = errors.get(runner, silent)
        if error is not None:
            logger.warning("%s It is restarted.", error.message)
            restart_env_runner(manager, runner)
