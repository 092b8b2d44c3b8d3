"""Our rollout without tools against `LLM.generate` of bare vLLM, on the same prompts and token counts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from release.benchmarks.common.bench import SMOLLM2, Bench, BenchmarkError, EngineHandle, alternate, ratio, timed
from release.benchmarks.rollout.workload import STOP, Workload, our_rollout

if TYPE_CHECKING:
    from rllib_arpo.engine import EngineConfig

ENTROPY_WINDOW = 16
#: Arguments of our engine that bare vLLM does without. How it schedules is its own choice.
OURS_ALONE = {"logits_processors", "logprobs_mode", "scheduling_policy", "async_scheduling"}


def bare_arguments(config: EngineConfig) -> dict[str, Any]:
    """The arguments of vLLM's `LLM` that our engine has, where they are not vLLM's defaults, without `OURS_ALONE`."""
    import dataclasses

    from vllm import EngineArgs

    from rllib_arpo.engine.vllm.arguments import engine_args

    ours = engine_args(config)
    return {
        field.name: getattr(ours, field.name)
        for field in dataclasses.fields(EngineArgs)
        if field.name not in OURS_ALONE and getattr(ours, field.name) != getattr(EngineArgs, field.name, None)
    }


def generate(llm: Any, workload: Workload) -> float:
    """Generates the workload's first turns with vLLM's `LLM` alone; tokens per second.

    Raises:
        BenchmarkError: there are more or fewer tokens than the workload says.
    """
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=workload.turn_tokens, temperature=1.0, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": workload.prompt(question)}
        for question in range(workload.num_questions)
        for _ in range(workload.num_trajectories)
    ]
    seconds, outputs = timed(llm.generate, prompts, params, use_tqdm=False)
    arrived = sum(len(output.outputs[0].token_ids) for output in outputs)
    if arrived != workload.num_generated_tokens:
        raise BenchmarkError(f"Bare vLLM generated {arrived} tokens instead of {workload.num_generated_tokens}.")
    return arrived / seconds


def rollout(handle: EngineHandle, workload: Workload) -> float:
    """Tokens per second of ours, with log-probs, entropies of the first tokens and stop strings."""
    seconds, _ = timed(our_rollout, handle, workload, entropy_window=ENTROPY_WINDOW, deterministic=False)
    return workload.num_generated_tokens / seconds


def make_bare(config: EngineConfig) -> Any:
    from vllm import LLM

    return LLM(**bare_arguments(config))


def close_bare(llm: Any) -> None:
    """Leaves torch's process groups, which our engine in this process goes on using, as they are."""
    llm.llm_engine.engine_core._finalizer.detach()
    llm.llm_engine.model_executor.shutdown()


def raw_vllm(bench: Bench) -> dict[str, Any]:
    """Tokens per second, ours / bare: with entropies of the first 16 tokens, log-probs and stop strings on our side.

    Of the best repeat of each side: other work on the machine only ever slows a repeat down.
    """
    repeats, tokens, questions = bench.pick(full=(5, 128, 4), quick=(4, 64, 2), tiny=(1, 8, 2))
    seeds = itertools.count()
    handle = bench.engine(SMOLLM2)
    bare = handle.call(make_bare, handle.config)

    def workload(turn_tokens: int) -> Workload:
        return Workload(turn_tokens, num_questions=questions, num_turns=1, seed=next(seeds))

    try:
        rollout(handle, workload(4))
        handle.call(generate, bare, workload(4))
        sides = {
            "ours_tokens_per_s": lambda _: rollout(handle, workload(tokens)),
            "bare_tokens_per_s": lambda _: handle.call(generate, bare, workload(tokens)),
        }
        speeds = alternate(sides, repeats, warm_up=False)
    finally:
        handle.call(close_bare, bare)
    about = {
        "model": bench.model_name(SMOLLM2),
        "bare_side": "LLM.generate, SamplingParams(max_tokens, temperature=1, ignore_eos=True), our engine arguments",
        "our_side": f"log-probs, entropy_window={ENTROPY_WINDOW}, stop={list(STOP)}",
        "sequences": questions * workload(tokens).num_trajectories,
        "generated_tokens": tokens,
    }
    results = ratio("raw_vllm_ratio", "ours_tokens_per_s", "bare_tokens_per_s", speeds, **about)
    return results | {"raw_vllm_ratio": max(speeds["ours_tokens_per_s"]) / max(speeds["bare_tokens_per_s"])}
