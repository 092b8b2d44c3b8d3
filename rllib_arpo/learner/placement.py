"""The GPUs that learners and engines share, and the memory that they need there. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from rllib_arpo.learner.memory_budget import LearnerNeed, LearnerShape
from rllib_arpo.engine.memory import EngineNeed, EngineShape

#: Fractions of a GPU that differ by less are equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Place:
    """`number` GPUs that are used alike: each by so many learners, and by parts of so many engines; or the CPU."""

    number: int
    learners: int
    engines: int


def gpu_places(learner: LearnerShape, engine: EngineShape) -> list[Place]:
    """The GPUs of a run. Learners and engines that take fractions go to the first GPU that has room, as Ray packs them.

    An engine in the learner's process does not take a GPU of its own.
    """
    room: list[float] = []
    users: list[Counter[str]] = []
    wanted = [("learners", learner.gpus)] * learner.number
    # Where an engine has several GPUs, each of them is taken as a whole.
    wanted += [("engines", min(1.0, engine.gpus))] * (engine.separate * engine.parallel)
    for kind, share in wanted:
        if share == 0:
            continue
        index = next((index for index, left in enumerate(room) if left >= share - _ROUNDING), len(room))
        if index == len(room):
            room.append(1.0)
            users.append(Counter())
        room[index] -= share
        users[index][kind] += 1
    if engine.in_learner and learner.gpus > 0:
        users[0]["engines"] += 1
    places = Counter((user["learners"], user["engines"]) for user in users)
    return [Place(number, *key) for key, number in places.items()]


def cpu_place(learner: LearnerShape, engine: EngineShape) -> Place:
    """The learners and engines of which none has a GPU; an engine is as many processes as `parallel` says."""
    with_gpu = engine.gpus > 0 or (engine.in_learner and learner.gpus > 0)
    return Place(1, 0 if learner.gpus else learner.number, 0 if with_gpu else engine.number * engine.parallel)


def num_gpus(learner: LearnerShape, engine: EngineShape) -> int:
    """The number of GPUs that Ray must have for the run."""
    asked = learner.number * learner.gpus + engine.separate * engine.gpus
    return max(math.ceil(asked - _ROUNDING), sum(place.number for place in gpu_places(learner, engine)))


def needed_on(place: Place, learner: LearnerNeed, engine: EngineNeed, sleeps: bool) -> int:
    """Bytes that the users of a place need at the same time, in the update or while engines sample."""
    engines = place.engines * engine.total.bytes
    update = place.learners * learner.peak + (0 if sleeps else engines)
    return max(update, place.learners * learner.resting + engines)
