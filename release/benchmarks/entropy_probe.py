"""What the entropies of the first tokens cost, and how exact they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from bench import SMOLLM2, Bench, EngineHandle, alternate, median, timed
from workload import Workload

from rllib_arpo.engine.engine import Finished, GenerationRequest

OVERHEAD, MAX_ERROR = "entropy_overhead", "entropy_max_error"
ENTROPY_WINDOW = 16
TURN_TOKENS = 256
#: Of them so many are timed.
TIMED_TOKENS = 48
TEMPERATURES = (0.7, 1.0)


def overhead(bench: Bench) -> dict[str, Any]:
    """The fraction of time that a window of 16 of 256 tokens costs against a window of 0.

    A machine's speed drifts by more than the figure while 256 tokens are generated. So every engine step is timed, in
    many short runs of both sides in turn, and the extra time of a step within the window and of one beyond it (which
    should be none) are added up for 256 tokens.
    """
    sequences, repeats = bench.pick(full=(64, 12), quick=(16, 7), tiny=(2, 2))
    handle = bench.engine(SMOLLM2)
    prompts = Workload(1, num_questions=sequences, num_trajectories=1, num_turns=1)
    step_times = {
        name: lambda _, window=window: handle.call(_step_times, handle, prompts, window)
        for name, window in (("with_window", ENTROPY_WINDOW), ("without_window", 0))
    }
    times = {name: np.array(values) for name, values in alternate(step_times, repeats).items()}
    within, beyond = slice(0, ENTROPY_WINDOW), slice(ENTROPY_WINDOW, TIMED_TOKENS)
    extra = {
        name: median([np.median(a[part]) - np.median(b[part]) for a, b in zip(*times.values(), strict=True)])
        for name, part in (("within", within), ("beyond", beyond))
    }
    step_s = float(np.median(times["without_window"]))
    lost_s = ENTROPY_WINDOW * extra["within"] + (TURN_TOKENS - ENTROPY_WINDOW) * extra["beyond"]
    detail = {
        "sides": ["with_window_step_ms", "without_window_step_ms"],
        **{f"{name}_step_ms": round(1000 * float(np.median(values)), 3) for name, values in times.items()},
        "extra_ms_per_step_within_the_window": round(1000 * extra["within"], 3),
        "extra_ms_per_step_beyond_the_window": round(1000 * extra["beyond"], 3),
        "entropy_window": ENTROPY_WINDOW,
        "generated_tokens": TURN_TOKENS,
        "timed_tokens": TIMED_TOKENS,
        "sequences": sequences,
        "model": bench.model_name(SMOLLM2),
        "repeats": repeats,
    }
    return {OVERHEAD: lost_s / (TURN_TOKENS * step_s + lost_s), f"{OVERHEAD}_detail": detail}


def _step_times(handle: EngineHandle, prompts: Workload, window: int) -> list[float]:
    """Seconds of each decoding step of all prompts together, prefill left out."""
    for question in range(prompts.num_questions):
        handle.engine.submit(
            GenerationRequest(f"{question}", prompts.prompt(question), TIMED_TOKENS + 1, entropy_window=window)
        )
    handle.engine.step()
    times = [timed(handle.engine.step)[0] for _ in range(TIMED_TOKENS)]
    assert not handle.engine.has_unfinished()
    return times


def max_error(bench: Bench) -> dict[str, Any]:
    """The largest difference to the entropies of a plain Hugging Face forward pass in fp32, on the same tokens."""
    sequences = bench.pick(full=32, quick=8, tiny=2)
    work = Workload(turn_tokens=32, num_questions=sequences, num_trajectories=1, num_turns=1)
    errors = {}
    handle = bench.engine(SMOLLM2)
    for temperature in TEMPERATURES:
        prompts = [work.prompt(question) for question in range(sequences)]
        finished = handle.call(_generate, handle, prompts, work.turn_tokens, temperature)
        expected = _reference(handle.folder, prompts, finished, temperature)
        errors[temperature] = max(
            float(np.abs(one.entropies - other).max()) for one, other in zip(finished, expected, strict=True)
        )
    detail = {
        "sides": ["max_error_by_temperature", "entropies_compared"],
        "max_error_by_temperature": errors,
        "entropies_compared": sequences * work.turn_tokens * len(TEMPERATURES),
        "reference": "transformers, fp32 forward, softmax and sum in fp64",
        "model": bench.model_name(SMOLLM2),
        "seeds": [work.seed],
    }
    return {MAX_ERROR: max(errors.values()), f"{MAX_ERROR}_detail": detail}


def _generate(handle: EngineHandle, prompts: list[list[int]], max_tokens: int, temperature: float) -> list[Finished]:
    """Generates all prompts together, the entropies of all tokens measured."""
    for i, prompt in enumerate(prompts):
        request = GenerationRequest(f"{i}", prompt, max_tokens, temperature=temperature, entropy_window=max_tokens)
        handle.engine.submit(request)
    finished = {}
    while handle.engine.has_unfinished():
        finished |= {event.request_id: event for event in handle.engine.step() if isinstance(event, Finished)}
    return [finished[f"{i}"] for i in range(len(prompts))]


def _reference(folder: str, prompts: list[list[int]], finished: list[Finished], temperature: float) -> list[np.ndarray]:
    """The entropies [n] in nats of the generated tokens' distributions, by `transformers` alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    entropies = []
    with torch.no_grad():
        for prompt, end in zip(prompts, finished, strict=True):
            ids = torch.tensor([[*prompt, *end.token_ids.tolist()]])
            logits = model(ids).logits[0, len(prompt) - 1 : -1].double() / temperature
            probabilities = logits.softmax(-1)
            entropies.append(torch.special.entr(probabilities).sum(-1).numpy())
    return entropies
