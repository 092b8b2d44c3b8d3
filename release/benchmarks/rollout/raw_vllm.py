"""Compares our rollout without tools to bare vLLM's `LLM.generate` on the same prompts and token counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch

from release.benchmarks.common.bench import SMOLLM2, Bench, BenchmarkError, EngineHandle, alternate, ratio, timed
from release.benchmarks.rollout.workload import STOP, Workload, our_rollout

if TYPE_CHECKING:
    from rllib_arpo.engine import EngineConfig

ENTROPY_WINDOW = 16
#: Arguments that only our engine gets; bare vLLM schedules as it chooses.
OURS_ALONE = {"logits_processors", "logprobs_mode", "scheduling_policy", "async_scheduling"}


def against_vllm(engine: Callable[[], EngineHandle], workloads: Sequence[Workload]) -> dict[str, list[float]]:
    """Tokens per second of "ours" and of "bare", in turn; the last workload is for the warm-up.

    Bare vLLM has its own process, which loads vLLM while our engine starts.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(load_vllm, as_ours=not torch.cuda.is_available())
        handle = engine()
        pool.submit(start_vllm, bare_arguments(handle.config)).result()
        sides = {
            "ours": lambda repeat: rollout(handle, workloads[repeat]),
            "bare": lambda repeat: pool.submit(generate, workloads[repeat]).result(),
        }
        return alternate(sides, len(workloads) - 1)


def rollout(handle: EngineHandle, workload: Workload) -> float:
    """Our tokens per second, with log-probs, entropies of the first tokens and stop strings."""
    seconds, _ = timed(our_rollout, handle, workload, entropy_window=ENTROPY_WINDOW, deterministic=False)
    return workload.num_generated_tokens / seconds


def bare_arguments(config: EngineConfig) -> dict[str, Any]:
    """Our engine's arguments that are not vLLM's defaults, without `OURS_ALONE`, for vLLM's `LLM`."""
    import dataclasses

    from vllm import EngineArgs

    from rllib_arpo.engine.vllm.arguments import engine_args

    ours = engine_args(config)
    return {
        field.name: getattr(ours, field.name)
        for field in dataclasses.fields(EngineArgs)
        if field.name not in OURS_ALONE and getattr(ours, field.name) != getattr(EngineArgs, field.name, None)
    }


def load_vllm(*, as_ours: bool) -> None:
    """Args: `as_ours`: scheduler and model share a process, like in our engine and as CPUs need it; or vLLM decides."""
    if as_ours:
        import rllib_arpo.engine.vllm  # noqa: F401
    else:
        # Our engine may have set it in the parent process.
        os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    import vllm  # noqa: F401


def start_vllm(arguments: Mapping[str, Any]) -> None:
    from vllm import LLM

    globals()["_LLM"] = LLM(**arguments)


def generate(workload: Workload) -> float:
    """Generates the workload's first turns with this process's `LLM`; returns tokens per second.

    Raises:
        BenchmarkError: the number of tokens is not the workload's.
    """
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=workload.turn_tokens, temperature=1.0, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": workload.prompt(question)}
        for question in range(workload.num_questions)
        for _ in range(workload.num_trajectories)
    ]
    seconds, outputs = timed(globals()["_LLM"].generate, prompts, params, use_tqdm=False)
    arrived = sum(len(output.outputs[0].token_ids) for output in outputs)
    if arrived != workload.num_generated_tokens:
        raise BenchmarkError(f"Bare vLLM generated {arrived} tokens instead of {workload.num_generated_tokens}.")
    return arrived / seconds


def raw_vllm(bench: Bench) -> dict[str, Any]:
    """Tokens per second, ours / bare; our side has entropies of the first 16 tokens, log-probs and stop strings.

    The best repeat of each side counts, since other work on the machine can only slow a repeat down.
    """
    repeats, tokens, questions = bench.pick(full=(5, 128, 4), quick=(4, 64, 2), tiny=(1, 8, 2))
    workloads = [Workload(tokens, num_questions=questions, num_turns=1, seed=seed) for seed in range(repeats + 1)]
    speeds = against_vllm(lambda: bench.engine(SMOLLM2), workloads)
    about = {
        "model": bench.model_name(SMOLLM2),
        "bare_side": "LLM.generate, SamplingParams(max_tokens, temperature=1, ignore_eos=True), our engine arguments",
        "our_side": f"log-probs, entropy_window={ENTROPY_WINDOW}, stop={list(STOP)}",
        "sequences": questions * workloads[0].num_trajectories,
        "generated_tokens": tokens,
    }
    results = ratio("raw_vllm_ratio", "ours", "bare", speeds, **about)
    return results | {"raw_vllm_ratio": max(speeds["ours"]) / max(speeds["bare"])}
