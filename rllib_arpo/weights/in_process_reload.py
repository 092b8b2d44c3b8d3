"""Weights as arrays through Ray's object store, loaded by the engine in its own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_arpo.weights.weight_sync import WeightSync, put_snapshot

if TYPE_CHECKING:
    import ray
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager


class InProcessReload(WeightSync):
    """Works with every engine and device.

    A remote learner puts its weights into the object store itself and only the reference passes through the driver.
    """

    def _publish(self, manager: FaultTolerantActorManager, runners: list[int]) -> ray.ObjectRef:
        return self._on_first_learner(put_snapshot)
