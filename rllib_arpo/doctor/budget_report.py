"""The text of a run's memory budget, and the checks that compare it with the machine."""

from __future__ import annotations

from collections.abc import Iterator

from rllib_arpo.doctor.machine import Machine
from rllib_arpo.doctor.memory_budget import (
    EngineNeed,
    EngineShape,
    LearnerNeed,
    Term,
    engine_need,
    engine_weights,
    learner_need,
)
from rllib_arpo.doctor.placement import HostNeed, Place, gpu_places, host_need, needed_on, num_gpus
from rllib_arpo.doctor.recipe import Run
from rllib_arpo.doctor.report import Check, Mark, size

#: The share of a learner's GPU that should remain for what is not counted.
_SPARE = 0.1
_NOT_COUNTED = "Not counted: one layer's own values in the backward pass, CUDA's context, the allocator's waste."
_NO_CHECKPOINTING = "Not counted: activations, since the layers' are kept without gradient checkpointing."


def gpu_memory(machine: Machine, given_gb: float | None) -> int | None:
    """Bytes of each GPU: as given, otherwise those of the smallest GPU here; None if there is none."""
    if given_gb is not None:
        return int(given_gb * 1e9)
    return min((gpu.total for gpu in machine.gpus), default=None)


def budget_text(run: Run, memory: int | None) -> str:
    """The arithmetic, a line each; GB are 10^9 bytes."""
    return "\n".join(_lines(run, memory))


def _lines(run: Run, memory: int | None) -> Iterator[str]:
    model, learner, engine = run.model, run.learner, run.engine
    need = learner_need(model, learner)
    yield f"{run.name}: {model.parameters:,} parameters, {model.layers} layers"
    sharding = ", sharding='fsdp2'" if learner.sharded else ""
    yield f"{_count(learner.number, 'learner')} ({_device(learner.gpus)}{sharding})"
    passes = (*need.kept, *need.passes)
    yield from map(_term, passes)
    yield f"{size(sum(term.bytes for term in passes)):>11}  during a pass"
    if learner.offload:
        yield from map(_term, need.step)
        yield f"{size(need.resting + sum(term.bytes for term in need.step)):>11}  during an optimizer step"
    yield f"{'':11}  {_NOT_COUNTED if learner.checkpointing else _NO_CHECKPOINTING}"
    where = " and ".join(_places(engine))
    several = f", tensor_parallel_size={engine.parallel}: numbers are those of each GPU" if engine.parallel > 1 else ""
    yield f"{_count(engine.number, 'engine')} ({where}{several})"
    if (of_engine := _engine_need(run, memory)) is None:
        yield _term(engine_weights(model, engine))
        yield f"{'':11}  {engine.utilization:g} of the GPU's memory in all; the weights leave the rest to the KV cache."
    else:
        yield from _engine_lines(run, of_engine)
    host = host_need(model, learner, engine, need, run.through_ray)
    yield "The CPU's memory, if all is on one machine, first and later" if host.loading else "The CPU's memory"
    yield from map(_term, host.loading)
    yield from map(_term, host.running)


def _places(engine: EngineShape) -> Iterator[str]:
    if not engine.in_learner:
        yield _device(engine.gpus)
        return
    yield "in the learner's process"
    if engine.separate:
        yield f"{engine.separate:,} for evaluation: {_device(engine.gpus)}"


def _engine_need(run: Run, memory: int | None) -> EngineNeed | None:
    """None if it depends on the size of a GPU, which is not known."""
    if memory is None and run.engine.kv_cache is None:
        return None
    return engine_need(run.model, run.engine, memory or 0)


def _engine_lines(run: Run, need: EngineNeed) -> Iterator[str]:
    yield _term(need.total)
    yield _term(need.weights)
    yield f"{size(max(need.cache, 0)):>11}  KV cache, at most: the engine's own values are taken from it"
    yield f"{need.token.bytes:>9,} B  a token of it: {need.token.formula}"
    longest = _count(need.trajectories, "trajectory", "trajectories")
    yield f"{need.tokens:>11,}  tokens, which are {longest} of {run.engine.context_tokens:,}"
    in_flight = f"{_count(run.questions, 'question')} x {_count(run.trajectories, 'trajectory', 'trajectories')}"
    yield f"{'':11}  At most {in_flight} come at a time; they share their beginnings, and the rest waits."


def budget_checks(run: Run, machine: Machine, given_gb: float | None) -> list[Check]:
    """Compares the budget with this machine, or with GPUs of `given_gb`; a run without GPUs with this machine alone."""
    memory = gpu_memory(machine, given_gb)
    need, of_engine = learner_need(run.model, run.learner), _engine_need(run, memory)
    places = gpu_places(run.learner, run.engine)
    checks = [_number(run, machine, given_gb)] if places else []
    if memory is not None and of_engine is not None:
        checks += [_place(place, run, need, of_engine, memory) for place in places]
    if of_engine is not None:
        checks.append(_cache(run, of_engine))
    host = host_need(run.model, run.learner, run.engine, need, run.through_ray)
    return checks + (_host(run, host, machine) if given_gb is None or not places else [])


def _number(run: Run, machine: Machine, given_gb: float | None) -> Check:
    wanted, here = num_gpus(run.learner, run.engine), len(machine.gpus)
    if given_gb is not None:
        return Check(Mark.OK, "GPUs", f"the run takes {wanted}, here assumed to have {size(given_gb * 1e9)} each")
    if here >= wanted:
        return Check(Mark.OK, "GPUs", f"the run takes {wanted} of {here}")
    advice = "Lower num_gpus_per_*, or compare with another machine's GPUs: --gpu-memory-gb 80."
    return Check(Mark.MISSING, "GPUs", f"the run takes {wanted}, and this machine has {here}", advice)


def _place(place: Place, run: Run, learner: LearnerNeed, engine: EngineNeed, memory: int) -> Check:
    """The check of GPUs that are used alike."""
    name = _count(place.number, "GPU")
    needed = needed_on(place, learner, engine, run.engine.sleeps)
    numbers = [(place.learners, "learner"), (place.engines, "engine")]
    users = " and ".join(_count(number, word) for number, word in numbers if number)
    found = f"{users}: {size(needed)} of {size(memory)}"
    if needed > memory:
        shared = place.engines and place.learners * learner.peak <= memory
        return Check(Mark.MISSING, name, found, _smaller_sum(place, run) if shared else _smaller_learner(run))
    if place.learners and needed > (1 - _SPARE) * memory:
        return Check(Mark.WARNING, name, found, f"Little is left for what is not counted. {_smaller_learner(run)}")
    return Check(Mark.OK, name, found)


def _smaller_learner(run: Run) -> str:
    sharding = "" if run.learner.sharded else " with sharding='fsdp2'"
    return f"Take more learners{sharding}, a smaller max_tokens_per_pass, or larger GPUs."


def _smaller_sum(place: Place, run: Run) -> str:
    """Advice where learners and engines fit, each alone, and not together."""
    sleep = ", set sleep_level," if place.learners and not run.engine.sleeps else ""
    return f"Give the engine less ({_engine_option(run)}){sleep} or take separate GPUs."


def _engine_option(run: Run) -> str:
    """The key of `engine_kwargs` that sets the engine's memory."""
    return "gpu_memory_utilization" if run.engine.kv_cache is None else "kv_cache_memory_bytes"


def _cache(run: Run, engine: EngineNeed) -> Check:
    found = f"{engine.tokens:,} tokens, {_count(engine.trajectories, 'longest trajectory', 'longest trajectories')}"
    if engine.trajectories:
        return Check(Mark.OK, "KV cache", found)
    parallel = "a larger tensor_parallel_size" if run.engine.parallel > 1 else "a tensor_parallel_size"
    advice = f"Give the engine more ({_engine_option(run)}), {parallel}, or a smaller max_context_tokens."
    return Check(Mark.MISSING, "KV cache", found, advice)


def _host(run: Run, host: HostNeed, machine: Machine) -> list[Check]:
    found = f"{size(host.total)} of {size(machine.memory)}"
    checks = [Check(Mark.OK, "CPU's memory", found)]
    if host.total > machine.memory:
        fewer = "Take fewer learners on this machine, or one with more memory."
        advice = fewer if run.learner.number > 1 else "Take a machine with more memory."
        checks = [Check(Mark.MISSING, "CPU's memory", found, advice)]
    if host.stored:
        found = f"{size(host.stored)} of weights, {size(machine.object_store)} of room"
        if host.stored <= machine.object_store:
            return [*checks, Check(Mark.OK, "object store", found)]
        separate = min(run.learner.gpus, run.engine.gpus) >= 1
        other = ", or weight_sync='nccl' between separate GPUs" if separate else ""
        advice = f"Ray will write weights to the disk: take more memory{other}."
        checks.append(Check(Mark.WARNING, "object store", found, advice))
    return checks


def _device(gpus: float) -> str:
    return f"{gpus:g} GPU" if gpus else "on the CPU"


def _term(term: Term) -> str:
    return f"{size(term.bytes):>11}  {term.name}: {term.formula}"


def _count(number: int, word: str, words: str = "") -> str:
    return f"{number:,} {word if number == 1 else words or word + 's'}"
