"""The GPUs that learners and engines share, and the memory that they need there. Pure functions."""

import math
from collections import Counter
from dataclasses import dataclass

from rllib_arpo.engine.memory import EngineNeed, EngineShape
from rllib_arpo.learner.memory_budget import LearnerNeed, LearnerShape

#: Fractions of a GPU that differ by less are equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """`number` GPUs that are used alike: each by so many learners, and by parts of so many engines; or the CPU.

    `evaluating` are engines of evaluation that have sizes of their own.
    """

    number: int
    learners: int
    engines: int
    evaluating: int = 0


def gpu_groups(learner: LearnerShape, engine: EngineShape) -> list[DeviceGroup]:
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
    groups = Counter((user["learners"], user["engines"], user["evaluating"]) for user in users)
    return [DeviceGroup(number, *key) for key, number in groups.items()]


def cpu_group(learner: LearnerShape, engine: EngineShape) -> DeviceGroup:
    """The learners and engines of which none has a GPU; an engine is as many processes as `parallel` says."""
    with_gpu = engine.gpus > 0 or (engine.in_learner and learner.gpus > 0)
    engines = 0 if with_gpu else engine.number * engine.parallel
    other = engine.evaluation
    evaluating = 0 if other is None or other.gpus > 0 else other.number * other.parallel
    return DeviceGroup(1, 0 if learner.gpus else learner.number, engines, evaluating)


def num_gpus(learner: LearnerShape, engine: EngineShape) -> int:
    """The number of GPUs that Ray must have for the run."""
    asked = learner.number * learner.gpus + engine.separate * engine.gpus
    if engine.evaluation is not None:
        asked += engine.evaluation.number * engine.evaluation.gpus
    return max(math.ceil(asked - _ROUNDING), sum(group.number for group in gpu_groups(learner, engine)))


def needed_on(group: DeviceGroup, learner: LearnerNeed, engine: EngineNeed, sleeps: bool) -> int:
    """Bytes that the users of a group need at the same time, in the update or while engines sample."""
    sampling = group.learners * learner.resting + _of_engines(group, engine)
    return max(needed_in_update(group, learner, engine, sleeps), sampling)


def needed_in_update(group: DeviceGroup, learner: LearnerNeed, engine: EngineNeed, sleeps: bool) -> int:
    """Bytes that the users of a group need at the same time in the update; engines that sleep need none."""
    return group.learners * learner.peak + (0 if sleeps else _of_engines(group, engine))


def _of_engines(group: DeviceGroup, engine: EngineNeed) -> int:
    evaluation = 0 if engine.evaluation is None else engine.evaluation.total.bytes
    return group.engines * engine.total.bytes + group.evaluating * evaluation
