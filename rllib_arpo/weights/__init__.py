"""Brings the learner's weights to the engines: blocking, versioned, and verified by what the engines compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_arpo.weights.in_process_reload import InProcessReload
from rllib_arpo.weights.weight_sync import WeightSync

if TYPE_CHECKING:
    from ray.rllib.core.learner.learner_group import LearnerGroup

WEIGHT_SYNCS: dict[str, type[WeightSync]] = {"in_process_reload": InProcessReload}
"""By the name that `weight_sync` takes."""
AUTO = "auto"


def make_weight_sync(name: str, learner_group: LearnerGroup) -> WeightSync:
    """The implementation called `name`; "auto" takes the one that works with every engine and device."""
    return WEIGHT_SYNCS["in_process_reload" if name == AUTO else name](learner_group)
