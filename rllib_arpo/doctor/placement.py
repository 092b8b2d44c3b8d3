"""The GPUs that learners and engines share, and the memory that they need there and on the CPU. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
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
from rllib_arpo.engine.vllm_kwargs import CPU_KV_CACHE_BYTES

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


def num_gpus(learner: LearnerShape, engine: EngineShape) -> int:
    """How many GPUs Ray must have for the run."""
    asked = learner.number * learner.gpus + engine.separate * engine.gpus
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
    loading: list[Term] = []
    running: list[Term] = []
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
    running += _of_engines(model, learner, engine)
    if model.adapter_parameters and (through_ray or engine.in_learner):
        running += _of_merging(model, engine)
    # Whole weights come in the engine's type, an adapter in fp32.
    width = 4 if model.adapter_parameters else engine.weight_bytes
    stored = trained * width if through_ray else 0
    if stored:
        # Ray copies what lies in the learner's process: weights from a GPU, or those it has cast, or fp32 on the CPU
        # the learner's own.
        copies = 1 if learner.gpus == 0 and width == 4 else 2
        text = f"{copies} x {trained:,} parameters x {width} bytes"
        running.append(Term("weights on their way to the engines", copies * stored, text))
    return HostNeed(tuple(loading), tuple(running), stored)


def _of_engines(model: ModelShape, learner: LearnerShape, engine: EngineShape) -> Iterator[Term]:
    """All of the engines on the CPU, and the weights of those that sleep on GPUs."""
    on_cpu = (engine.separate if engine.gpus == 0 else 0) + (engine.in_learner and learner.gpus == 0)
    on_gpus, weights = engine.number - on_cpu, engine_weights(model, engine).bytes
    if on_cpu:
        # Each process of an engine has its part of the weights, and a whole KV cache.
        cache = CPU_KV_CACHE_BYTES if engine.kv_cache is None else engine.kv_cache
        processes = f"{engine.parallel} processes x " if engine.parallel > 1 else ""
        text = f"{on_cpu:,} x {processes}({weights:,} bytes of weights + {cache:,} of KV cache)"
        yield Term("engines", on_cpu * engine.parallel * (weights + cache), text)
    if on_gpus and engine.sleep_level == 1:
        held = weights * engine.parallel
        yield Term("weights of sleeping engines", on_gpus * held, f"{on_gpus:,} x {held:,} bytes")


def _of_merging(model: ModelShape, engine: EngineShape) -> Iterator[Term]:
    """A LoRA comes to the env runners alone: each holds the base, and merges both in fp32 for its engine."""
    for name, size in (("bases of the LoRA in env runners", engine.weight_bytes), ("merged weights", 4)):
        text = f"{engine.number:,} x {model.parameters:,} parameters x {size} bytes"
        yield Term(name, engine.number * model.parameters * size, text)
