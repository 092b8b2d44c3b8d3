"""The GPUs that learners and engines share, and the memory that they need there. Pure functions."""

import math
from collections import Counter
from dataclasses import dataclass

from rllib_arpo.engine.memory import EngineNeed, EngineShape
from rllib_arpo.learner.memory_budget import LearnerNeed, LearnerShape

#: Fractions of a GPU that differ by less are equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Place:
    """`number` GPUs that are used alike: each by so many learners, and by parts of so many engines; or the CPU.

    `evaluating` are engines of evaluation that have sizes of their own.
    """

    number: int
    learners: int
    engines: int
    evaluating: int = 0


def gpu_places(learner: LearnerShape, engine: EngineShape) -> list[Place]:
    """The GPUs of a run. Learners and engines that take fractions go to the first GPU that has room, as Ray packs them.

    An engine in the learner's process does not take a GPU of its own.
    """
    room: list[float] = []
    users: list[Counter[str]] = []
    wanted = [("learners", learner.gpus)] * learner.number
    # Where an engine has several GPUs, each of them is taken as a whole.
    for kind, shape in (("engines", engine), ("evaluating", engine.evaluation)):
        if shape is not None:
            wanted += [(kind, min(1.0, shape.gpus))] * (shape.separate * shape.parallel)
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
    places = Counter((user["learners"], user["engines"], user["evaluating"]) for user in users)
    return [Place(number, *key) for key, number in places.items()]


def cpu_place(learner: LearnerShape, engine: EngineShape) -> Place:
    """The learners and engines of which none has a GPU; an engine is as many processes as `parallel` says."""
    with_gpu = engine.gpus > 0 or (engine.in_learner and learner.gpus > 0)
    engines = 0 if with_gpu else engine.number * engine.parallel
    other = engine.evaluation
    evaluating = 0 if other is None or other.gpus > 0 else other.number * other.parallel
    return Place(1, 0 if learner.gpus else learner.number, engines, evaluating)


def num_gpus(learner: LearnerShape, engine: EngineShape) -> int:
    """The number of GPUs that Ray must have for the run."""
    asked = learner.number * learner.gpus + engine.separate * engine.gpus
    if engine.evaluation is not None:
        asked += engine.evaluation.number * engine.evaluation.gpus
    return max(math.ceil(asked - _ROUNDING), sum(place.number for place in gpu_places(learner, engine)))


def needed_on(place: Place, learner: LearnerNeed, engine: EngineNeed, sleeps: bool) -> int:
    """Bytes that the users of a place need at the same time, in the update or while engines sample."""
    engines = place.engines * engine.total.bytes
    if engine.evaluation is not None:
        engines += place.evaluating * engine.evaluation.total.bytes
    update = place.learners * learner.peak + (0 if sleeps else engines)
    return max(update, place.learners * learner.resting + engines)
