"""The seconds of an iteration's parts on H100 GPUs, by arithmetic with a few measured constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rllib_arpo.engine.memory import EngineNeed
from rllib_arpo.learner.memory_budget import checkpointed_layers

if TYPE_CHECKING:
    from rllib_arpo.doctor.budget import Run

#: Of one H100 in bf16, dense.
PEAK_FLOPS = 989e12
#: Measured with 1.5B and passes of 8,192 tokens: the part of the peak that an update reaches, and the one that it
#: reaches when all layers are computed again.
MFU, MFU_AGAIN = 0.37, 0.29
#: Measured with 0.5B: the engine's serial work in Python a step, and bytes of new weights a second.
STEP_S, PUSH_BYTES = 0.007, 2.3e9
#: Not measured: bytes a second that a decoding step reads of weights and KV cache.
READ_BYTES = 0.7 * 3.35e12
#: Assumed: responses are half as long as they may be, and this part of them is generated.
LENGTH, GENERATED = 0.5, 0.6


def seconds_text(run: Run, engine: EngineNeed) -> str:
    """The parts of an iteration, line by line."""
    return "\n".join(_lines(run, engine))


def _lines(run: Run, engine: EngineNeed) -> Iterator[str]:
    response = round(LENGTH * run.response_tokens)
    length, generated = run.engine.context_tokens - run.response_tokens + response, round(GENERATED * response)
    trajectories = run.batch * run.trajectories
    yield (
        f"an iteration on H100s: {run.batch:,} questions x {run.trajectories:,} trajectories of {length:,} tokens, "
        f"{generated:,} of them generated"
    )
    number = run.engines
    in_flight = max(min(run.questions * run.trajectories, engine.tokens // length, trajectories // number), 1)
    step = max(STEP_S, (engine.weights.bytes + in_flight * length * engine.token.bytes) / READ_BYTES)
    yield _line(
        trajectories * generated / number / in_flight * step,
        f"rollout: {trajectories * generated:,} tokens / {counted(number, 'engine')} / {in_flight:,} in flight x "
        f"{1000 * step:.1f} ms a step, without waits for tools",
    )
    again = checkpointed_layers(run.model, run.learner) / run.model.layers
    mfu = MFU + again * (MFU_AGAIN - MFU)
    flops = (4 if run.model.adapter_parameters else 6) + 2 * run.learner.reference + 2 * (run.steps > 1)
    yield _line(
        flops * run.model.parameters * trajectories * length / (run.learner.number * PEAK_FLOPS * mfu),
        f"update: {flops} x {run.model.parameters:,} parameters x {trajectories * length:,} tokens / "
        f"{counted(run.learner.number, 'learner')} / {PEAK_FLOPS / 1e12:.0f} TFLOP/s x {mfu:.2f}, "
        "less what forks share",
    )
    pushed = run.model.parameters * run.engine.weight_bytes
    yield _line(pushed / PUSH_BYTES, f"new weights: {pushed:,} bytes / {PUSH_BYTES / 1e9:.1f} GB a second")
    yield (
        f"{'':11}  Measured on one H100: {MFU:.2f} of the peak ({MFU_AGAIN:.2f} if all layers are computed again), at "
        f"least {1000 * STEP_S:.0f} ms a step, {PUSH_BYTES / 1e9:.1f} GB a second. Assumed: {READ_BYTES / 1e12:.1f} TB "
        f"a second read in decoding, responses of half the limit, {GENERATED:.0%} of them generated."
    )


def counted(number: int, word: str, words: str = "") -> str:
    """Says "1 engine", "4 engines"; `words`: the plural, if it is irregular."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"


def _line(seconds: float, text: str) -> str:
    return f"{seconds:>9,.1f} s  {text}"
