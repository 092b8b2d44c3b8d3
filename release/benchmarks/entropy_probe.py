"""What the entropies of the first tokens cost, and how exact they are."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from bench import SMOLLM2, Bench, EngineHandle, alternate, best, median, rounded, timed
from workload import Workload, our_rollout

from rllib_arpo.engine.engine import Finished, GenerationRequest

OVERHEAD, MAX_ERROR = "entropy_overhead", "entropy_max_error"
ENTROPY_WINDOW = 16
TEMPERATURES = (0.7, 1.0)


def overhead(bench: Bench) -> dict[str, Any]:
    """The fraction of tokens per second that a window of 16 of 256 tokens costs against a window of 0.

    Of the best repeat of each side: the figure is smaller than what other work on a machine does to a repeat.
    """
    trajectories, repeats = bench.pick(full=(16, 5), quick=(8, 4), tiny=(1, 1))
    work = Workload(
        turn_tokens=bench.pick(full=256, quick=256, tiny=32),
        num_questions=4 if bench.size == "full" else 1,
        num_trajectories=trajectories,
        num_turns=1,
    )
    seeds = itertools.count()
    handle = bench.engine(SMOLLM2)

    def speed(window: int) -> float:
        workload = dataclasses.replace(work, seed=next(seeds))
        seconds, _ = timed(our_rollout, handle, workload, entropy_window=window, deterministic=False)
        return workload.num_generated_tokens / seconds

    our_rollout(handle, dataclasses.replace(work, turn_tokens=8), entropy_window=4, deterministic=False)
    sides = {"with_window": lambda _: speed(ENTROPY_WINDOW), "without_window": lambda _: speed(0)}
    speeds = alternate(sides, repeats, warm_up=False)
    lost = [1 - a / b for a, b in zip(speeds["with_window"], speeds["without_window"], strict=True)]
    of_best = 1 - best(speeds["with_window"]) / best(speeds["without_window"])
    detail = {
        "sides": ["with_window_tokens_per_s", "without_window_tokens_per_s"],
        **{f"{name}_tokens_per_s": rounded(values, 1) for name, values in speeds.items()},
        "fraction_lost_by_repeat": rounded(lost),
        "median_fraction_lost": round(median(lost), 4),
        "entropy_window": ENTROPY_WINDOW,
        "generated_tokens": work.turn_tokens,
        "sequences": work.num_questions * work.num_trajectories,
        "model": bench.model_name(SMOLLM2),
        "repeats": repeats,
    }
    return {OVERHEAD: of_best, f"{OVERHEAD}_detail": detail}


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
