"""What all ways of bringing weights to engines share: who is behind gets a `WeightSnapshot`, and is awaited."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import ray

from rllib_arpo.rollout.fault_tolerance import restart_env_runner
from rllib_arpo.weights.weight_sync import LoadError, WeightSyncError

if TYPE_CHECKING:
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager, RemoteCallResults

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.learner.learner_group import ARPOLearnerGroup
    from rllib_arpo.weights.snapshot import WeightSnapshot

T = TypeVar("T")

logger = logging.getLogger("rllib_arpo")

#: Seconds after which an env runner that loads weights is taken for hung.
LOAD_TIMEOUT_S = 600.0
#: Seconds after which an env runner that does not tell its version counts as dead.
ANSWER_TIMEOUT_S = 120.0


class SnapshotSync:
    """A `WeightSync`; the classes derived from it say how a snapshot gets to the env runners."""

    backend: str | None = None

    def __init__(self, learner_group: ARPOLearnerGroup):
        self._learner_group = learner_group

    def push(self, group: EnvRunnerGroup, runners: list[int] | None = None, *, force: bool = False) -> int:
        """See `WeightSync.push`."""
        version = self._on_first_learner(_version)
        if group.num_remote_env_runners() == 0:
            runner = group.local_env_runner
            is_behind = force or runner.weight_version() != version
            if is_behind and (error := runner.load_weights(self._snapshot())):
                raise WeightSyncError(error.message)
            return version
        manager = group._worker_manager
        versions = manager.foreach_actor("weight_version", remote_actor_ids=runners, timeout_seconds=ANSWER_TIMEOUT_S)
        behind = [answer.actor_id for answer in versions if answer.ok and (force or answer.get() != version)]
        if behind:
            # Ray hands the env runners what a reference stands for.
            snapshot = self._publish(manager, behind)
            answers = manager.foreach_actor(
                "load_weights", kwargs={"snapshot": snapshot}, remote_actor_ids=behind, timeout_seconds=LOAD_TIMEOUT_S
            )
            _restart_failed(manager, behind, answers)
        return version

    def _snapshot(self) -> WeightSnapshot:
        """For an env runner in the driver's process."""
        raise NotImplementedError

    def _publish(self, manager: FaultTolerantActorManager, runners: list[int]) -> ray.ObjectRef | WeightSnapshot:
        """For env runners with these ids."""
        raise NotImplementedError

    def _on_first_learner(self, function: Callable[[ARPOTorchLearner], T], timeout_s: float | None = None) -> T:
        try:
            return self._learner_group.on_first(function, timeout_s)
        except TimeoutError as error:
            raise WeightSyncError(str(error)) from error


def _version(learner: ARPOTorchLearner) -> int:
    return learner.weight_version


def _restart_failed(manager: FaultTolerantActorManager, runners: list[int], answers: RemoteCallResults) -> None:
    """Restarts those whose engine died or hangs: unlike one that refuses the weights, it may take them when it is new.

    Raises:
        WeightSyncError: weights were refused.
    """
    errors = {answer.actor_id: answer.get() for answer in answers if answer.ok}
    if refused := [error.message for error in errors.values() if error is not None and not error.retry]:
        raise WeightSyncError(" ".join(refused))
    for runner in runners:
        silent = LoadError(f"Env runner {runner} did not answer while it loaded weights.", retry=True)
        error = errors.get(runner, silent)
        if error is not None:
            logger.warning("%s It is restarted.", error.message)
            restart_env_runner(manager, runner)
