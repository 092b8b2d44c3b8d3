"""Tool-using rollouts without a barrier against lock-step rounds, on the same engine with the same tools and seeds."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from typing import Any

from release.benchmarks.common.bench import SMALL_LLAMA, SMOLLM2, Bench, BenchmarkError, EngineHandle, median, rounded
from release.benchmarks.rollout.workload import STOP, Workload, WorkloadEnv, check_lengths, our_rollout
from rllib_arpo.envs.forkable_env import OPTION_NUM_ROOTS, OPTION_QUESTION
from rllib_arpo.rollout.seeds import request_seed

LONGTAIL, LONGTAIL_NO_LOGPROBS, INSTANT = (
    "lockstep_ratio_longtail",
    "lockstep_ratio_longtail_nologprobs",
    "lockstep_ratio_instant",
)
#: The lock-step side's log-probs per token: what the ARPO authors ask of vLLM.
LOGPROBS = 10
#: Less than this share of equal tokens means that the two sides did not do the same work.
MIN_EQUAL_TOKENS = 0.9

_IDS = itertools.count()


def lockstep_rollout(handle: EngineHandle, workload: Workload, logprobs: int | None):
    """Samples the workload in rounds: generate all to their stop, wait for all, run all tools, wait for all.

    Returns:
        (tokens of every (question, agent) turn by turn, seconds of every round's generation).
    """
    return asyncio.run(_lockstep_rounds(handle, workload, logprobs))


async def _lockstep_rounds(handle: EngineHandle, workload: Workload, logprobs: int | None):
    loop = asyncio.get_running_loop()
    envs = [WorkloadEnv(workload) for _ in range(workload.num_questions)]
    contexts = {}
    for question, env in enumerate(envs):
        options = {OPTION_QUESTION: question, OPTION_NUM_ROOTS: workload.num_trajectories}
        for agent, prompt in env.reset(options=options)[0].items():
            contexts[question, agent] = prompt.tolist()
    decode_s = []
    for turn in range(workload.num_turns):
        start = time.perf_counter()
        seeds = [request_seed(workload.seed, question, agent, turn) for question, agent in contexts]
        args = (handle, list(contexts.values()), seeds, workload.turn_tokens, logprobs)
        outputs = await loop.run_in_executor(handle.thread, generate_all, *args)
        decode_s.append(time.perf_counter() - start)
        steps = await asyncio.gather(
            *(envs[q].step_agent(a, tokens) for (q, a), tokens in zip(contexts, outputs, strict=True))
        )
        for context, tokens, step in zip(contexts.values(), outputs, steps, strict=True):
            context += [*tokens, *step[0].tolist()]
    generated = {key: turns for env in envs for key, turns in env.generated.items()}
    check_lengths(workload, generated)
    return generated, decode_s


def generate_all(
    handle: EngineHandle, prompts: list[list[int]], seeds: list[int], max_tokens: int, logprobs: int | None
) -> list[list[int]]:
    """Generates all prompts to their ends with vLLM alone; the loop of `LLM.generate`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    ids = [f"lockstep-{next(_IDS)}" for _ in prompts]
    for name, prompt, seed in zip(ids, prompts, seeds, strict=True):
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0,
            seed=seed,
            stop=list(STOP),
            include_stop_str_in_output=True,
            logprobs=logprobs,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        handle.llm.add_request(name, {"type": "token", "prompt_token_ids": prompt}, params)
    outputs = {}
    while handle.llm.has_unfinished_requests():
        outputs |= {o.request_id: list(o.outputs[0].token_ids) for o in handle.llm.step() if o.finished}
    return [outputs[name] for name in ids]


def equal_tokens(one: dict, other: dict) -> float:
    """Fraction of positions at which both sides have the same token."""
    pairs = [
        (a, b)
        for key, turns in one.items()
        for x, y in zip(turns, other[key], strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def segment_decode_s(handle: EngineHandle, workload: Workload) -> float:
    """Seconds in which all trajectories together decode one segment: the mean of lock-step rounds without log-probs."""
    workload = dataclasses.replace(workload, median_latency_s=0.0)
    lockstep_rollout(handle, workload, None)
    handle.drop_prefix_cache()
    return sum(lockstep_rollout(handle, workload, None)[1]) / workload.num_turns


def entropy_window(workload: Workload) -> int:
    """The default k, or half of a turn that is shorter than two windows."""
    return min(16, max(1, workload.turn_tokens // 2))


def _measure(handle: EngineHandle, workload: Workload, sides: dict[str, int | None], first_ours: bool):
    """Wall seconds of "ours" and of each lock-step side, and the smallest fraction of tokens equal to ours."""
    seconds, tokens = {}, {}
    order = ["ours", *sides] if first_ours else [*sides, "ours"]
    for name in order:
        handle.drop_prefix_cache()  # The tokens are the same, and must be computed by each side.
        start = time.perf_counter()
        if name == "ours":
            window = entropy_window(workload)
            tokens[name] = our_rollout(handle, workload, entropy_window=window, deterministic=True)
        else:
            tokens[name] = lockstep_rollout(handle, workload, sides[name])[0]
        seconds[name] = time.perf_counter() - start
    equal = min(equal_tokens(tokens["ours"], tokens[name]) for name in sides)
    if equal < MIN_EQUAL_TOKENS:
        raise BenchmarkError(f"Only {equal:.1%} of the tokens are the same on both sides.")
    return seconds, equal


def _compare(handle: EngineHandle, workloads: list[Workload], sides: dict[str, tuple[str, int | None]]) -> dict:
    """Key -> the median of lock-step seconds / our seconds over the workloads, with its detail."""
    our_rollout(handle, dataclasses.replace(workloads[0], median_latency_s=0.0), entropy_window=1, deterministic=True)
    runs = [
        _measure(handle, workload, {key: logprobs for key, (_, logprobs) in sides.items()}, first_ours=i % 2 == 0)
        for i, workload in enumerate(workloads)
    ]
    num_trajectories = workloads[0].num_questions * workloads[0].num_trajectories
    results: dict[str, Any] = {}
    for key, (description, _) in sides.items():
        ours, theirs = [s["ours"] for s, _ in runs], [s[key] for s, _ in runs]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        results[key] = median(ratios)
        results[f"{key}_detail"] = {
            "lockstep_side": description,
            "ours_trajectories_per_s": rounded([num_trajectories / s for s in ours]),
            "lockstep_trajectories_per_s": rounded([num_trajectories / s for s in theirs]),
            "ratios": rounded(ratios),
            "sides": ["ours_trajectories_per_s", "lockstep_trajectories_per_s"],
            "ours_s": rounded(ours),
            "lockstep_s": rounded(theirs),
            "equal_tokens": rounded([equal for _, equal in runs]),
            "seeds": [workload.seed for workload in workloads],
            "entropy_window": entropy_window(workloads[0]),
            **{
                name: getattr(workloads[0], name)
                for name in ("num_questions", "num_trajectories", "num_turns", "turn_tokens", "prompt_tokens")
            },
            "tool_tokens": workloads[0].tool_tokens,
            "median_latency_s": round(workloads[0].median_latency_s, 4),
        }
    return results


def longtail(bench: Bench) -> dict[str, Any]:
    """Tools with lognormal latencies, median = a segment's decode time; ours against lock-step with and without
    log-probs."""
    name = bench.pick(full=SMOLLM2, quick=SMALL_LLAMA, tiny=SMALL_LLAMA)
    handle = bench.engine(name)
    workload = Workload(turn_tokens=bench.pick(full=16, quick=5, tiny=4))
    median_s = segment_decode_s(handle, workload)
    workloads = [
        dataclasses.replace(workload, seed=s, median_latency_s=median_s)
        for s in range(bench.pick(full=5, quick=5, tiny=1))
    ]
    sides = {
        LONGTAIL: (f"logprobs={LOGPROBS} on every token", LOGPROBS),
        LONGTAIL_NO_LOGPROBS: ("no log-probs", None),
    }
    results = _compare(handle, workloads, sides)
    for key in sides:
        results[f"{key}_detail"] |= {"model": bench.model_name(name), "segment_decode_s": round(median_s, 4)}
    return results


def instant(bench: Bench) -> dict[str, Any]:
    """Tools that answer at once."""
    name = bench.pick(full=SMOLLM2, quick=SMALL_LLAMA, tiny=SMALL_LLAMA)
    handle = bench.engine(name)
    workload = Workload(turn_tokens=bench.pick(full=32, quick=12, tiny=4))
    segment_decode_s(handle, workload)  # warms up
    workloads = [dataclasses.replace(workload, seed=seed) for seed in range(bench.pick(full=5, quick=5, tiny=1))]
    both = {INSTANT: (f"logprobs={LOGPROBS} on every token", LOGPROBS), "nologprobs": ("no log-probs", None)}
    results = _compare(handle, workloads, both)
    without = results.pop("nologprobs_detail")
    results[f"{INSTANT}_detail"] |= {
        "model": bench.model_name(name),
        "ratio_without_lockstep_logprobs": round(results.pop("nologprobs"), 4),
        "without_lockstep_logprobs": {k: without[k] for k in ("ratios", "lockstep_s")},
    }
    return results
