"""Weights as arrays through Ray's object store, loaded by the engine in its own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ray

from rllib_arpo.weights.snapshot_sync import SnapshotSync

if TYPE_CHECKING:
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager

    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.weights.snapshot import WeightSnapshot


class InProcessReload(SnapshotSync):
    """Works with every engine and device.

    A remote learner puts its weights into the object store itself and only the reference passes through the driver. A
    learner and an env runner that share the driver's process share the arrays: nothing is copied but by the engine.
    """

    def _snapshot(self) -> WeightSnapshot:
        if self._learner_group.is_local:
            return self._on_first_learner(_snapshot)
        return ray.get(self._on_first_learner(_put))

    def _publish(self, _manager: FaultTolerantActorManager, _runners: list[int]) -> ray.ObjectRef:
        return self._on_first_learner(_put)


def _snapshot(learner: ARPOTorchLearner) -> WeightSnapshot:
    return learner.weight_snapshot()


def _put(learner: ARPOTorchLearner) -> ray.ObjectRef:
    return ray.put(learner.weight_snapshot())
