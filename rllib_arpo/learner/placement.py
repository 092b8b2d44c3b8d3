"""Computes which GPUs learners and engines share, and whether they have room there: pure functions."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rllib_arpo.engine.memory import EngineNeed, EngineShape, engine_need
from rllib_arpo.learner.memory_budget import LearnerNeed, LearnerShape, learner_need
from rllib_arpo.policy.model_shape import ModelShape

#: What to set for several learners that share GPUs with engines. Ray adds up the shares on a node: it would put nine
#: engines with smaller shares on eight GPUs, none of which has room for the ninth, and would wait for it forever.
SHARES_OF_PAIRS = (
    "to share GPUs in pairs set num_gpus_per_env_runner=0.9 and num_gpus_per_learner=0.1, with at least as many env "
    "runners as learners"
)
#: Why several learners cannot share GPUs in the way that a configuration says (`why_not_placed`).
TWO_LEARNERS = f"Ray would put several learners on one GPU, which NCCL refuses; {SHARES_OF_PAIRS}"
TWO_ENGINES = f"Ray would put several engines on one GPU, and learners on others; {SHARES_OF_PAIRS}"
#: Activations are kept while they fill at most this part of the memory. The margin is larger than the budget's: a run
#: that does not fit fails, whereas computing layers again only costs a forward pass.
FILLED = 0.8
#: Fractions of a GPU that differ by less are equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """`number` GPUs with the same users, or the CPU: how many learners, and how many engines or parts of engines.

    `evaluating` counts engines of evaluation that have sizes of their own.
    """

    number: int
    learners: int
    engines: int
    evaluating: int = 0


def place_on_gpus(shares: Iterable[float]) -> list[list[int]]:
    """The numbers of the GPUs that Ray assigns to each share, on a node that has enough of them.

    Ray serves the shares in their order. Each goes to the fullest GPU that still has room for it; a share of 2 or more
    takes whole GPUs.
    """
    room: list[float] = []
    placed = []
    for share in shares:
        numbers = []
        for part in [min(share, 1.0)] * math.ceil(share - _ROUNDING):
            fitting = [number for number, left in enumerate(room) if left >= part - _ROUNDING]
            number = min(fitting, key=room.__getitem__, default=len(room))
            if number == len(room):
                room.append(1.0)
            room[number] -= part
            numbers.append(number)
        placed.append(numbers)
    return placed


def why_not_placed(shares: Sequence[float], learners: int) -> str | None:
    """Why several learners cannot have these shares of GPUs, beside the engines before them; None if they can.

    Ray serves the shares in their order. So it puts engines with at most half of a GPU side by side, and learners with
    more than half each need a GPU that no engine has.
    """
    if learners < 2 or not shares[-1]:
        return None
    placed = place_on_gpus(shares)
    if len(set(chain.from_iterable(placed[-learners:]))) < learners:
        return TWO_LEARNERS
    of_pairs = max(learners, sum(share > 0 for share in shares[:-learners]))
    return TWO_ENGINES if max(shares) < 1 and len(set(chain.from_iterable(placed))) > of_pairs else None


def gpu_groups(learner: LearnerShape, engine: EngineShape) -> list[DeviceGroup]:
    """The GPUs of a run, as Ray assigns them.

    An engine in the learner's process does not take a GPU of its own.
    """
    wanted = wanted_shares(learner, engine)
    users: dict[int, Counter[str]] = {}
    for (kind, _), numbers in zip(wanted, place_on_gpus(share for _, share in wanted), strict=True):
        for number in numbers:
            users.setdefault(number, Counter())[kind] += 1
    if engine.in_learner and learner.gpus > 0:
        next(user for user in users.values() if user["learners"])["engines"] += 1
    groups = Counter((user["learners"], user["engines"], user["evaluating"]) for user in users.values())
    return [DeviceGroup(number, *key) for key, number in groups.items()]


def wanted_shares(learner: LearnerShape, engine: EngineShape) -> list[tuple[str, float]]:
    """(kind of user, its share of a GPU), in the order in which Ray gives GPUs out.

    RLlib asks for the env runners' GPUs first, then for evaluation's, then for the learners'. A learner in the main
    process comes before all of them.
    """
    wanted = [("engines", engine.gpus)] * engine.separate
    if engine.evaluation is not None:
        wanted += [("evaluating", engine.evaluation.gpus)] * engine.evaluation.separate
    learners = [("learners", learner.gpus)] * learner.number
    return wanted + learners if learner.remote else learners + wanted


def cpu_group(learner: LearnerShape, engine: EngineShape) -> DeviceGroup:
    """The learners and engines without a GPU; an engine has `parallel` processes."""
    with_gpu = engine.gpus > 0 or (engine.in_learner and learner.gpus > 0)
    engines = 0 if with_gpu else engine.number * engine.parallel
    other = engine.evaluation
    evaluating = 0 if other is None or other.gpus > 0 else other.number * other.parallel
    return DeviceGroup(1, 0 if learner.gpus else learner.number, engines, evaluating)


def num_gpus(learner: LearnerShape, engine: EngineShape) -> int:
    """The number of GPUs that Ray must have for the run."""
    return sum(group.number for group in gpu_groups(learner, engine))


def needed_on(group: DeviceGroup, learner: LearnerNeed, engine: EngineNeed, sleeps: bool) -> int:
    """Bytes that the users of a group need at the same time, in the update or while engines sample."""
    sampling = group.learners * learner.resting + _of_engines(group, engine)
    return max(needed_in_update(group, learner, engine, sleeps), sampling)


def needed_in_update(group: DeviceGroup, learner: LearnerNeed, engine: EngineNeed, sleeps: bool) -> int:
    """Bytes that the users of a group need at the same time in the update; sleeping engines need none."""
    return group.learners * learner.peak + (0 if sleeps else _of_engines(group, engine))


def _of_engines(group: DeviceGroup, engine: EngineNeed) -> int:
    evaluation = 0 if engine.evaluation is None else engine.evaluation.total.bytes
    return group.engines * engine.total.bytes + group.evaluating * evaluation


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for `gradient_checkpointing="auto"`: how many layers, the first ones, are computed again.

    `needed` of `memory` bytes are filled if activations of all layers are kept.
    """

    layers: int
    needed: int
    memory: int

    def __str__(self) -> str:
        answer = f"True for {self.layers} {'layer' if self.layers == 1 else 'layers'}" if self.layers else "False"
        return (
            f"gradient_checkpointing='auto' is {answer}: with all activations the device would hold "
            f"{self.needed:,} of {self.memory:,} bytes in an update; it may hold {FILLED:.0%}."
        )


def decide_checkpointing(model: ModelShape, learner: LearnerShape, engine: EngineShape, memory: int) -> Decision:
    """The smallest number of layers to compute again in the backward pass so that the others' activations fit.

    Args:
        memory: bytes of each GPU that a learner uses, or of its machine if it has none. The learner shares it with
            other learners and with engines, except for engines that sleep during the update.
    """
    groups = gpu_groups(learner, engine) if learner.gpus else [cpu_group(learner, engine)]
    of_engine = engine_need(model, engine, memory)

    def needed(layers: int) -> int:
        need = learner_need(model, replace(learner, checkpointing=layers > 0, checkpointed_layers=layers))
        return max(needed_in_update(group, need, of_engine, engine.sleeps) for group in groups if group.learners)

    fitting = (layers for layers in range(model.layers) if needed(layers) <= FILLED * memory)
    return Decision(next(fitting, model.layers), needed(0), memory)
