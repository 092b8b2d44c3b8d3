"""The memory that a run needs: the arithmetic in words, and the checks that compare it with the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rllib_arpo.doctor.checks import Check, Mark, Memory, size
from rllib_arpo.doctor.seconds import counted, seconds_text
from rllib_arpo.engine.memory import EngineNeed, EngineShape, Term, engine_need, engine_weights
from rllib_arpo.learner.memory_budget import LearnerShape, learner_need
from rllib_arpo.learner.placement import (
    DeviceGroup,
    cpu_group,
    decide_checkpointing,
    gpu_groups,
    needed_on,
    num_gpus,
    wanted_shares,
    why_not_placed,
)
from rllib_arpo.learner.run_shapes import engine_shape, learner_shape
from rllib_arpo.policy.llm_rl_module import COMPUTE_DTYPES
from rllib_arpo.policy.model_shape import ModelShape, model_shape

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: The share of a learner's GPU that should stay free for what is not counted.
_SPARE = 0.1
_NOT_COUNTED = "Not counted: the gradients of one layer's values, CUDA's context, the allocator's waste."
_UNDECIDED = "gradient_checkpointing='auto': counted as True because the GPU is not known."
_ENGINE_MEMORY = "gpu_memory_utilization or kv_cache_memory_bytes"
_SMALLER_LEARNER = "Take more learners with sharding='fsdp2', a smaller max_tokens_per_pass, or larger GPUs."
_SMALLER_ENGINE = f"Give the engine less ({_ENGINE_MEMORY}), set sleep_level, or take separate GPUs."
_MORE_CACHE = (
    f"Give the engine more ({_ENGINE_MEMORY}), a larger tensor_parallel_size, or a smaller max_context_tokens."
)


@dataclass(frozen=True, slots=True)
class Run:
    """A configured run.

    Attributes:
        name: the model's name.
        engines: training's; `engine` may also count evaluation's.
        questions, trajectories: how many questions an engine samples at a time, and how many trajectories of each.
        batch, steps: the questions of an iteration, and the optimizer steps over them.
        response_tokens: the limit of a trajectory behind its prompt.
        decision: the reason for the outcome of `gradient_checkpointing="auto"`; empty if the configuration decides.
    """

    name: str
    model: ModelShape
    learner: LearnerShape
    engine: EngineShape
    engines: int
    questions: int
    trajectories: int
    batch: int
    steps: int
    response_tokens: int
    decision: str = ""


def read_run(config: ARPOConfig) -> Run:
    """Reads the sizes of a run from its configuration and its model's, without loading weights.

    Raises:
        ValueError: the engine is not vLLM, or the model does not exist or cannot be trained.
        ImportError: the configuration has a LoRA, and PEFT is not installed.
    """
    if config.engine != "vllm" or config.dtype not in COMPUTE_DTYPES or config.dtype == "float64":
        raise ValueError(f"engine={config.engine!r} with dtype={config.dtype!r}: only vLLM's memory can be computed.")
    return Run(
        name=str(config.model_name_or_path),
        model=model_shape(str(config.model_name_or_path), config.lora),
        learner=learner_shape(config),
        engine=engine_shape(config),
        engines=max(config.num_env_runners, 1),
        questions=config.num_envs_per_env_runner,
        trajectories=config.num_rollouts,
        batch=config.questions_per_batch,
        steps=config.num_epochs * max(config.questions_per_batch // config.questions_per_minibatch, 1),
        response_tokens=config.max_response_tokens,
    )


def gpu_memory(memory: Memory, given_gb: float | None) -> int | None:
    """Bytes of each GPU: the given ones, otherwise those of the smallest GPU here; None if there is none."""
    return int(given_gb * 1e9) if given_gb is not None else min(memory.gpus, default=None)


def decide(run: Run, memory: Memory, given_gb: float | None) -> Run:
    """The run with `gradient_checkpointing="auto"` decided, unless its learners have GPUs that are not known."""
    of_device = gpu_memory(memory, given_gb) if run.learner.gpus else memory.host
    if run.learner.checkpointing is not None or of_device is None:
        return run
    decision = decide_checkpointing(run.model, run.learner, run.engine, of_device)
    decided = replace(run.learner, checkpointing=decision.layers > 0, checkpointed_layers=decision.layers)
    return replace(run, learner=decided, decision=str(decision))


def budget_text(run: Run, on_gpu: int | None) -> str:
    """The arithmetic, line by line; GB are 10^9 bytes. `on_gpu`: bytes of each GPU, if they are known."""
    lines = [*_learner_lines(run), *_engine_lines(run, run.engine, on_gpu)]
    if run.engine.evaluation is not None:
        lines += _engine_lines(run, run.engine.evaluation, on_gpu, " for evaluation")
    engine = _engine_need(run, run.engine, on_gpu)
    if run.learner.gpus and engine is not None and engine.trajectories:
        lines.append(seconds_text(run, engine))
    return "\n".join(lines)


def _learner_lines(run: Run) -> Iterator[str]:
    model, learner = run.model, run.learner
    need = learner_need(model, learner)
    yield f"{run.name}: {model.parameters:,} parameters, {model.layers} layers"
    sharding = ", sharding='fsdp2'" if learner.sharded else ""
    yield f"{counted(learner.number, 'learner')} ({_device(learner.gpus)}{sharding})"
    passes = (*need.kept, *need.passes)
    yield from map(_term, passes)
    yield f"{size(sum(term.bytes for term in passes)):>11}  during a pass"
    if learner.offload:
        yield from map(_term, need.step)
        yield f"{size(need.resting + sum(term.bytes for term in need.step)):>11}  during an optimizer step"
    yield f"{'':11}  {_NOT_COUNTED}"
    if line := _UNDECIDED if learner.checkpointing is None else run.decision:
        yield f"{'':11}  {line}"


def _engine_lines(run: Run, engine: EngineShape, on_gpu: int | None, purpose: str = "") -> Iterator[str]:
    where = "in the learner's process" if engine.in_learner else _device(engine.gpus)
    several = f", tensor_parallel_size={engine.parallel}: numbers are those of each GPU" if engine.parallel > 1 else ""
    yield f"{counted(engine.number, 'engine')}{purpose} ({where}{several})"
    need = _engine_need(run, engine, on_gpu)
    if need is None:
        yield _term(engine_weights(run.model, engine))
        yield f"{'':11}  {engine.utilization:g} of the GPU's memory in all; the weights leave the rest to the KV cache."
        return
    yield _term(need.total)
    yield from map(_term, (need.weights, *need.own))
    rest = "what is left" if need.own else "at most: the engine's own values are taken from it"
    yield f"{size(max(need.cache, 0)):>11}  KV cache, {rest}"
    yield f"{need.token.bytes:>9,} B  a token of it: {need.token.formula}"
    if need.state.bytes:
        yield f"{need.state.bytes:>9,} B  the state of a trajectory: {need.state.formula}"
    longest = counted(need.trajectories, "trajectory", "trajectories")
    yield f"{need.tokens:>11,}  tokens, which are {longest} of {engine.context_tokens:,}"
    if purpose:
        return
    in_flight = f"{counted(run.questions, 'question')} x {counted(run.trajectories, 'trajectory', 'trajectories')}"
    yield f"{'':11}  At most {in_flight} come at a time; they share their beginnings, and the rest waits."


def _engine_need(run: Run, engine: EngineShape, on_gpu: int | None) -> EngineNeed | None:
    """What the engine needs; None if that depends on the size of a GPU that is not known."""
    if on_gpu is None and any(shape is not None and shape.kv_cache is None for shape in (engine, engine.evaluation)):
        return None
    return engine_need(run.model, engine, on_gpu or 0)


def budget_checks(run: Run, memory: Memory, given_gb: float | None) -> list[Check]:
    """Compares the budget with this machine or with GPUs of `given_gb`; a run without GPUs only with this machine."""
    on_gpu = gpu_memory(memory, given_gb)
    engine = _engine_need(run, run.engine, on_gpu)
    groups = gpu_groups(run.learner, run.engine)
    checks = [_number(run, memory, given_gb)] if groups else []
    if engine is not None:
        if on_gpu is not None:
            checks += [_group(group, run, engine, on_gpu) for group in groups]
        for need in filter(None, (engine, engine.evaluation)):
            found = f"{need.tokens:,} tokens, {counted(need.trajectories, 'trajectory', 'trajectories')}"
            name = "KV cache" if need is engine else "evaluation's KV cache"
            checks.append(_check(need.trajectories > 0, name, f"{found} of the greatest length", _MORE_CACHE))
        on_cpu = cpu_group(run.learner, run.engine)
        if on_cpu.learners or on_cpu.engines or on_cpu.evaluating:
            needed, found = _needed(on_cpu, run, engine, memory.host)
            checks.append(_check(needed <= memory.host, "CPU's memory", found, "Take a machine with more memory."))
    return checks


def _check(fits: bool, name: str, found: str, advice: str) -> Check:
    return Check(Mark.OK, name, found) if fits else Check(Mark.MISSING, name, found, advice)


def _number(run: Run, memory: Memory, given_gb: float | None) -> Check:
    shares = [share for _, share in wanted_shares(run.learner, run.engine)]
    if reason := why_not_placed(shares, run.learner.number):
        return Check(Mark.MISSING, "GPUs", reason)
    wanted, here = num_gpus(run.learner, run.engine), len(memory.gpus)
    if given_gb is not None:
        return Check(Mark.OK, "GPUs", f"the run takes {wanted}, here assumed to have {size(given_gb * 1e9)} each")
    advice = "Lower num_gpus_per_*, or compare with another machine's GPUs: --gpu-memory-gb 80."
    return _check(here >= wanted, "GPUs", f"the run takes {wanted}, and this machine has {here}", advice)


def _group(group: DeviceGroup, run: Run, engine: EngineNeed, on_gpu: int) -> Check:
    """The check of GPUs that have the same users."""
    learner, name = learner_need(run.model, run.learner), counted(group.number, "GPU")
    needed, found = _needed(group, run, engine, on_gpu)
    if needed > on_gpu:
        each_fits_alone = (group.engines or group.evaluating) and group.learners * learner.peak <= on_gpu
        return Check(Mark.MISSING, name, found, _SMALLER_ENGINE if each_fits_alone else _SMALLER_LEARNER)
    if group.learners and needed > (1 - _SPARE) * on_gpu:
        return Check(Mark.WARNING, name, found, f"Little is left for what is not counted. {_SMALLER_LEARNER}")
    return Check(Mark.OK, name, found)


def _needed(group: DeviceGroup, run: Run, engine: EngineNeed, available: int) -> tuple[int, str]:
    """The bytes that a group needs, and a comparison with what it has."""
    needed = needed_on(group, learner_need(run.model, run.learner), engine, run.engine.sleeps)
    numbers = [(group.learners, "learner"), (group.engines + group.evaluating, "engine")]
    users = " and ".join(counted(number, word) for number, word in numbers if number)
    return needed, f"{users}: {size(needed)} of {size(available)}"


def _device(gpus: float) -> str:
    return f"{gpus:g} GPU" if gpus else "on the CPU"


def _term(term: Term) -> str:
    return f"{size(term.bytes):>11}  {term.name}: {term.formula}"
