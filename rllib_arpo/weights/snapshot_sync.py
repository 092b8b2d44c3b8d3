"""What all ways of bringing weights to engines share: who is behind gets a `WeightSnapshot`, and is awaited."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import ray

from rllib_arpo.rollout.fault_tolerance import restart_env_runner
from rllib_arpo.weights.weight_sync import WeightSyncError

if TYPE_CHECKING:
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager, RemoteCallResults

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.weights.snapshot import WeightSnapshot

T = TypeVar("T")

logger = logging.getLogger("rllib_arpo")

#: Seconds after which an env runner that loads weights is taken for hung.
LOAD_TIMEOUT_S = 600.0


class SnapshotSync:
    """A `WeightSync`; the classes derived from it say how a snapshot gets to the env runners."""

    backend: str | None = None

    def __init__(self, learner_group: LearnerGroup):
        self._learner_group = learner_group

    def push(self, group: EnvRunnerGroup, runners: list[int] | None = None, *, force: bool = False) -> int:
        """See `WeightSync.push`."""
        version = self._on_first_learner(_version)
        if group.num_remote_env_runners() == 0:
            runner = group.local_env_runner
            if force or runner.weight_version() != version:
                _raise(runner.load_weights(self._snapshot()))
            return version
        manager = group._worker_manager
        versions = manager.foreach_actor("weight_version", remote_actor_ids=runners)
        behind = [answer.actor_id for answer in versions if answer.ok and (force or answer.get() != version)]
        if behind:
            # Ray hands the env runners what a reference stands for.
            snapshot = self._publish(manager, behind)
            answers = manager.foreach_actor(
                "load_weights", kwargs={"snapshot": snapshot}, remote_actor_ids=behind, timeout_seconds=LOAD_TIMEOUT_S
            )
            check(answers)
            # An engine that died or hangs, unlike one that refuses the weights, works again when it is started anew.
            for runner in set(behind) - {answer.actor_id for answer in answers if answer.ok}:
                logger.warning("Env runner %d did not load the weights and is restarted.", runner)
                restart_env_runner(manager, runner)
        return version

    def _snapshot(self) -> WeightSnapshot:
        """For an env runner in the driver's process."""
        raise NotImplementedError

    def _publish(self, manager: FaultTolerantActorManager, runners: list[int]) -> ray.ObjectRef | WeightSnapshot:
        """For env runners with these ids."""
        raise NotImplementedError

    def _on_first_learner(self, function: Callable[[ARPOTorchLearner], T], timeout_s: float | None = None) -> T:
        """All learners have the same weights."""
        group = self._learner_group
        first = None if group.is_local else group._worker_manager.healthy_actor_ids()[:1]
        results = group.foreach_learner(function, remote_actor_ids=first, timeout_seconds=timeout_s)
        answers = group._get_results(results)
        if not answers:
            raise WeightSyncError(f"The learner has not answered for {timeout_s:g} s.")
        return answers[0]


def _version(learner: ARPOTorchLearner) -> int:
    return learner.weight_version


def check(answers: RemoteCallResults) -> None:
    """Raises the errors that env runners answered; one that is dead answers nothing."""
    _raise(*(answer.get() for answer in answers if answer.ok))


def _raise(*errors: str | None) -> None:
    if found := [error for error in errors if error is not None]:
        raise WeightSyncError(" ".join(found))
