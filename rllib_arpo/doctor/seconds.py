"""The seconds of an iteration's parts on H100 GPUs, by arithmetic with a few measured constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_arpo.engine.memory import EngineNeed
from rllib_arpo.learner.memory_budget import checkpointed_layers
from rllib_arpo.policy.model_shape import ModelShape

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
    parts = seconds(run, engine)
    length, generated = _sizes(run)
    return "\n".join(
        [
            f"an iteration on H100s, {sum(parts.values()):,.0f} s: {run.batch:,} questions x {run.trajectories:,} "
            f"trajectories of {length:,} tokens, {generated:,} of them generated",
            *(f"{of_part:>9,.1f} s  {text}" for text, of_part in parts.items()),
            f"{'':11}  Measured on one H100: {MFU:.2f} of the peak ({MFU_AGAIN:.2f} if all layers are computed again), "
            f"at least {1000 * STEP_S:.0f} ms a step, {PUSH_BYTES / 1e9:.1f} GB a second. Assumed: "
            f"{READ_BYTES / 1e12:.1f} TB a second read in decoding, responses of half the limit, {GENERATED:.0%} of "
            "them generated. Not counted: tools, reading prompts and responses, learners that wait for each other.",
        ]
    )


def seconds(run: Run, engine: EngineNeed) -> dict[str, float]:
    """Each part of an iteration, in words -> its seconds."""
    return dict([_rollout(run, engine), _update(run), _push(run)])


def _sizes(run: Run) -> tuple[int, int]:
    """The tokens of a trajectory, and how many of them are generated."""
    response = round(LENGTH * run.response_tokens)
    return run.engine.context_tokens - run.response_tokens + response, round(GENERATED * response)


def _rollout(run: Run, engine: EngineNeed) -> tuple[str, float]:
    length, generated = _sizes(run)
    trajectories, number = run.batch * run.trajectories, run.engines
    in_flight = max(min(run.questions * run.trajectories, engine.tokens // length, trajectories // number), 1)
    step = max(STEP_S, (engine.weights.bytes + in_flight * length * engine.token.bytes) / READ_BYTES)
    text = (
        f"rollout: {trajectories * generated:,} tokens / {counted(number, 'engine')} / {in_flight:,} in flight x "
        f"{1000 * step:.1f} ms a step"
    )
    return text, trajectories * generated / number / in_flight * step


def _update(run: Run) -> tuple[str, float]:
    length, _ = _sizes(run)
    tokens = run.batch * run.trajectories * length
    again = checkpointed_layers(run.model, run.learner) / run.model.layers
    mfu = MFU + again * (MFU_AGAIN - MFU)
    flops = (4 if run.model.adapter_parameters else 6) + 2 * run.learner.reference + 2 * (run.steps > 1)
    active, attention = run.model.parameters - run.model.idle_parameters, attention_of(run.model, length)
    text = (
        f"update: {flops} x ({active:,} parameters + {attention:,} of attention) x {tokens:,} tokens / "
        f"{counted(run.learner.number, 'learner')} / {PEAK_FLOPS / 1e12:.0f} TFLOP/s x {mfu:.2f}, less what forks share"
    )
    return text, flops * (active + attention) * tokens / (run.learner.number * PEAK_FLOPS * mfu)


def _push(run: Run) -> tuple[str, float]:
    pushed = run.model.parameters * run.engine.weight_bytes
    return f"new weights: {pushed:,} bytes / {PUSH_BYTES / 1e9:.1f} GB a second", pushed / PUSH_BYTES


def attention_of(model: ModelShape, length: int) -> int:
    """How many parameters cost a token as much as attention to half of `length` tokens: scores, then values."""
    return (model.layers - model.state_layers) * model.heads * model.head_dim * length


def counted(number: int, word: str, words: str = "") -> str:
    """Says "1 engine", "4 engines"; `words`: the plural, if it is irregular."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"
