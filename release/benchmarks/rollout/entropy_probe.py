"""Measures the cost of the first tokens' entropies, and of all tokens' entropies."""

from __future__ import annotations

from typing import Any

import numpy as np

from release.benchmarks.common.bench import SMOLLM2, Bench, EngineHandle, alternate, median, timed
from release.benchmarks.rollout.workload import Workload
from rllib_arpo.engine.engine import GenerationRequest

OVERHEAD, OVERHEAD_ALL = "entropy_overhead", "entropy_overhead_all"
ENTROPY_WINDOW = 16
TURN_TOKENS = 256
#: How many of these are timed.
TIMED_TOKENS = 48
#: The entropy settings of a request, on each side.
SIDES: dict[str, dict[str, Any]] = {
    "with_window": {"entropy_window": ENTROPY_WINDOW},
    "without": {},
    "all": {"entropy_window": ENTROPY_WINDOW, "record_entropies": "all"},
}


def overhead(bench: Bench) -> dict[str, Any]:
    """The fractions of time that entropies cost: of a window of 16 of 256 tokens, and of all 256 tokens.

    While 256 tokens are generated, a machine's speed drifts by more than the figure. So we time every engine step in
    many short runs of all sides in turn, and add up the steps' extra times for 256 tokens. With a window, steps within
    it and steps after it are timed separately; the latter should cost nothing.
    """
    sequences, repeats = bench.pick(full=(64, 12), quick=(16, 7), tiny=(2, 2))
    handle = bench.engine(SMOLLM2)
    prompts = Workload(1, num_questions=sequences, num_trajectories=1, num_turns=1)
    step_times = {
        name: lambda _, settings=settings: handle.call(_step_times, handle, prompts, settings)
        for name, settings in SIDES.items()
    }
    times = {name: np.array(values) for name, values in alternate(step_times, repeats).items()}
    # The last step of a run also collects the entropies.
    within, beyond, last = slice(0, ENTROPY_WINDOW), slice(ENTROPY_WINDOW, -1), slice(-1, None)
    extra_s = {
        "step_within_the_window": _extra(times["with_window"], times["without"], within),
        "step_beyond_the_window": _extra(times["with_window"], times["without"], beyond),
        "step_of_all": _extra(times["all"], times["without"], slice(0, -1)),
        "last_step_of_all": _extra(times["all"], times["without"], last),
    }
    beyond_the_window = TURN_TOKENS - ENTROPY_WINDOW
    lost_s = {
        OVERHEAD: ENTROPY_WINDOW * extra_s["step_within_the_window"]
        + beyond_the_window * extra_s["step_beyond_the_window"],
        OVERHEAD_ALL: TURN_TOKENS * extra_s["step_of_all"] + extra_s["last_step_of_all"],
    }
    detail = {
        **{f"{name}_step_ms": round(1000 * float(np.median(values)), 3) for name, values in times.items()},
        **{f"extra_ms_{name}": round(1000 * seconds, 3) for name, seconds in extra_s.items()},
        "entropy_window": ENTROPY_WINDOW,
        "generated_tokens": TURN_TOKENS,
        "timed_tokens": TIMED_TOKENS,
        "sequences": sequences,
        "model": bench.model_name(SMOLLM2),
        "repeats": repeats,
    }
    without_s = TURN_TOKENS * float(np.median(times["without"]))
    results = {name: lost / (without_s + lost) for name, lost in lost_s.items()}
    return results | {f"{name}_detail": detail for name in lost_s}


def _extra(times: np.ndarray, without: np.ndarray, part: slice) -> float:
    """The extra seconds of one of these steps, as the median over pairs of runs ([repeats, steps] each)."""
    return median([np.median(a[part]) - np.median(b[part]) for a, b in zip(times, without, strict=True)])


def _step_times(handle: EngineHandle, prompts: Workload, settings: dict[str, Any]) -> list[float]:
    """Seconds of each decoding step of all prompts together, without prefill."""
    for question in range(prompts.num_questions):
        handle.engine.submit(GenerationRequest(f"{question}", prompts.prompt(question), TIMED_TOKENS + 1, **settings))
    handle.engine.step()
    times = [timed(handle.engine.step)[0] for _ in range(TIMED_TOKENS)]
    assert not handle.engine.has_unfinished()
    return times
