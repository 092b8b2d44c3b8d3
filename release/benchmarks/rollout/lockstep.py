"""Compares tool-using rollouts without a barrier to lock-step rounds with the same engine, tools and seeds."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from typing import Any

import numpy as np

from release.benchmarks.common.bench import (
    SMALL_LLAMA,
    SMOLLM2,
    Bench,
    BenchmarkError,
    EngineHandle,
    ratio,
    rounded,
    timed,
)
from release.benchmarks.rollout.workload import STOP, Workload, WorkloadEnv, check_lengths, our_rollout
from rllib_arpo.envs.forkable_env import OPTION_NUM_ROOTS, OPTION_QUESTION
from rllib_arpo.rollout.seeds import request_seed

#: Lock-step side -> the log-probs per token that it asks vLLM for; ARPO's authors ask for ten.
LOGPROBS = {"lockstep_s": 10, "lockstep_nologprobs_s": None}
#: Figure -> side.
KEYS = {"lockstep_ratio_longtail": "lockstep_s", "lockstep_ratio_longtail_nologprobs": "lockstep_nologprobs_s"}
#: With a smaller share of equal tokens the two sides did not do the same work.
MIN_EQUAL_TOKENS = 0.9

_IDS = itertools.count()


async def lockstep_rollout(handle: EngineHandle, workload: Workload, logprobs: int | None):
    """Samples the workload in rounds: generate all to their stop, wait for all, run all tools, wait for all.

    Returns:
        ((question, agent) -> the tokens of its turns, seconds that each round generated).
    """
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
    """Generates all prompts to their ends with bare vLLM, in the loop of `LLM.generate`."""
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
    """The fraction of positions with the same token on both sides, whose turns have the same lengths."""
    return float(np.mean([np.equal(turns, other[key]).mean() for key, turns in one.items()]))


def segment_decode_s(handle: EngineHandle, workload: Workload) -> float:
    """Seconds for all trajectories together to decode a turn, as the mean of lock-step rounds without log-probs."""
    workload = dataclasses.replace(workload, median_latency_s=0.0)
    asyncio.run(lockstep_rollout(handle, workload, None))
    handle.drop_prefix_cache()
    _, decode_s = asyncio.run(lockstep_rollout(handle, workload, None))
    return sum(decode_s) / workload.num_turns


def longtail(bench: Bench) -> dict[str, Any]:
    """The median over seeds of trajectories/s, ours / lock-step, with and without log-probs in lock-step.

    The tools' latencies are lognormal; their median is the time in which all trajectories decode a turn.
    """
    name = bench.pick(full=SMOLLM2, quick=SMALL_LLAMA, tiny=SMALL_LLAMA)
    handle = bench.engine(name)
    workload = Workload(turn_tokens=bench.pick(full=16, quick=5, tiny=4))
    workload = dataclasses.replace(workload, median_latency_s=segment_decode_s(handle, workload))
    our_rollout(handle, dataclasses.replace(workload, median_latency_s=0.0), entropy_window=1, deterministic=True)
    seeds = range(bench.pick(full=5, quick=5, tiny=1))
    runs = [_measure(handle, dataclasses.replace(workload, seed=seed)) for seed in seeds]
    seconds = {side: [taken[side] for taken, _ in runs] for side in runs[0][0]}
    about = {
        "seeds": list(seeds),
        "equal_tokens": rounded([equal for _, equal in runs]),
        **{key: value for key, value in dataclasses.asdict(workload).items() if key != "seed"},
        "model": bench.model_name(name),
    }
    results = {}
    for key, side in KEYS.items():
        results |= ratio(key, side, "ours_s", {name: seconds[name] for name in ("ours_s", side)}, **about)
    return results


def _measure(handle: EngineHandle, workload: Workload) -> tuple[dict[str, float], float]:
    """Wall seconds of "ours_s" and of each lock-step side, and the smallest fraction of tokens equal to ours."""
    seconds, tokens = {}, {}
    order = ["ours_s", *LOGPROBS] if workload.seed % 2 == 0 else [*LOGPROBS, "ours_s"]
    for name in order:
        handle.drop_prefix_cache()  # The sides have the same tokens, and each must compute them.
        if name == "ours_s":
            window = min(16, max(1, workload.turn_tokens // 2))
            seconds[name], tokens[name] = timed(
                our_rollout, handle, workload, entropy_window=window, deterministic=True
            )
        else:
            seconds[name], (tokens[name], _) = timed(asyncio.run, lockstep_rollout(handle, workload, LOGPROBS[name]))
    equal = min(equal_tokens(tokens["ours_s"], tokens[name]) for name in LOGPROBS)
    if equal < MIN_EQUAL_TOKENS:
        raise BenchmarkError(f"Only {equal:.1%} of the tokens are equal on both sides.")
    return seconds, equal
