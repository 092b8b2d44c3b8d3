"""The GPUs that learners and engines share, and the memory that they need there and on the CPU. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from rllib_arpo.doctor.memory_budget import (
    EngineNeed,
    EngineShape,
    LearnerNeed,
    LearnerShape,
    ModelShape,
    Term,
    engine_weights,
)

#: Fractions of a GPU that differ by less are equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Place:
    """`number` GPUs that are used alike: each by so many learners, and by parts of so many engines."""

    number: int
    learners: int
    engines: int


def gpu_places(learner: LearnerShape, engine: EngineShape) -> list[Place]:
    """The GPUs of a run. Learners and engines that take fractions go to the first GPU that has room, as Ray packs them.

    An engine in the learner's process takes no GPU of its own.
    """
    room: list[float] = []
    users: list[Counter[str]] = []
    wanted = [("learners", learner.gpus)] * learner.number
    if not engine.in_learner:
        # Where an engine has several GPUs, each of them is taken as a whole.
        wanted += [("engines", min(1.0, engine.gpus))] * (engine.number * engine.parallel)
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


def num_gpus(learner: LearnerShape, engine: EngineShape) -> int:
    """How many GPUs Ray must have for the run."""
    asked = learner.number * learner.gpus + (0 if engine.in_learner else engine.number * engine.gpus)
    return max(math.ceil(asked - _ROUNDING), sum(place.number for place in gpu_places(learner, engine)))


def needed_on(place: Place, learner: LearnerNeed, engine: EngineNeed, sleeps: bool) -> int:
    """Bytes that the users of a place need at the same time, in the update or while engines sample."""
    engines = place.engines * engine.total.bytes
    update = place.learners * learner.peak + (0 if sleeps else engines)
    return max(update, place.learners * learner.resting + engines)


@dataclass(frozen=True, slots=True)
class HostNeed:
    """The CPU's memory.

    Attributes:
        loading: held by the learners before they put the weights, or their part of them, on their GPUs.
        running: held at the same time later.
        stored: bytes of one copy of the weights in Ray's object store; 0: they do not go through it.
    """

    loading: tuple[Term, ...]
    running: tuple[Term, ...]
    stored: int

    @property
    def total(self) -> int:
        return max(sum(term.bytes for term in terms) for terms in (self.loading, self.running))


def host_need(
    model: ModelShape, learner: LearnerShape, engine: EngineShape, of_learner: LearnerNeed, through_ray: bool
) -> HostNeed:
    """The memory that a run needs beside its GPUs, if all of it is on one machine.

    Args:
        through_ray: the weights travel through Ray's object store.
    """
    loading, running = [], []
    trained = model.adapter_parameters or model.parameters
    if learner.gpus == 0:
        text = f"{learner.number:,} x {of_learner.peak:,} bytes"
        running.append(Term("learners", learner.number * of_learner.peak, text))
    else:
        text = f"{learner.number:,} x {model.parameters:,} parameters x 4 bytes"
        loading.append(Term("models while they are loaded", learner.number * model.parameters * 4, text))
        if learner.offload:
            text = f"{learner.number:,} x {trained:,} parameters x 8 bytes"
            running.append(Term("Adam's two moments", learner.number * trained * 8, text))
    if engine.gpus == 0 and not (engine.in_learner and learner.gpus > 0):
        weights, cache = engine_weights(model, engine).bytes * engine.parallel, engine.kv_cache or 0
        text = f"{engine.number:,} x ({weights:,} bytes of weights + {cache:,} of KV cache)"
        running.append(Term("engines", engine.number * (weights + cache), text))
    stored = trained * 4 if through_ray else 0
    if stored:
        # From a GPU the weights come to the learner's process first; on the CPU Ray copies the learner's own.
        copies = 2 if learner.gpus else 1
        text = f"{copies} x {trained:,} parameters x 4 bytes"
        running.append(Term("weights on their way to the engines", copies * stored, text))
    return HostNeed(tuple(loading), tuple(running), stored)
