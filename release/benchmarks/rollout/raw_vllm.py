"""Our rollout without tools against `LLM.generate` of bare vLLM, on the same prompts and token counts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from release.benchmarks.common.bench import SMOLLM2, Bench, BenchmarkError, alternate, best, ratio, timed
from release.benchmarks.rollout.workload import STOP, Workload, our_rollout

if TYPE_CHECKING:
    from rllib_arpo.engine import EngineConfig

ENTROPY_WINDOW = 16
#: Arguments of our engine that bare vLLM does without.
OURS_ALONE = {"logits_processors", "logprobs_mode", "scheduling_policy"}


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


class BareVLLM:
    """vLLM's `LLM` with the engine arguments of ours, but without our logits processor and our log-prob mode."""

    def __init__(self, config: EngineConfig):
        from vllm import LLM

        self._llm = LLM(**bare_arguments(config))

    def generate(self, workload: Workload) -> int:
        """Generates the workload's first turns; returns the number of tokens."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=workload.turn_tokens, temperature=1.0, ignore_eos=True)
        prompts = [
            {"prompt_token_ids": workload.prompt(question)}
            for question in range(workload.num_questions)
            for _ in range(workload.num_trajectories)
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def close(self) -> None:
        """Leaves torch's process groups, which our engine in this process goes on using, as they are."""
        engine = self._llm.llm_engine
        engine.engine_core._finalizer.detach()
        engine.model_executor.shutdown()


def raw_vllm(bench: Bench) -> dict[str, Any]:
    """Tokens per second, ours / bare: with entropies of the first 16 tokens, log-probs and stop strings on our side.

    Of the best repeat of each side.
    """
    repeats, tokens, questions = bench.pick(full=(5, 128, 4), quick=(4, 64, 2), tiny=(1, 8, 2))
    seeds = itertools.count()
    handle = bench.engine(SMOLLM2)
    bare = handle.call(BareVLLM, handle.config)

    def workload(turn_tokens: int) -> Workload:
        return Workload(turn_tokens, num_questions=questions, num_turns=1, seed=next(seeds))

    def ours(work: Workload) -> float:
        seconds, _ = timed(our_rollout, handle, work, entropy_window=ENTROPY_WINDOW, deterministic=False)
        return work.num_generated_tokens / seconds

    def theirs(work: Workload) -> float:
        seconds, arrived = timed(handle.call, bare.generate, work)
        if arrived != work.num_generated_tokens:
            raise BenchmarkError(f"Bare vLLM generated {arrived} tokens instead of {work.num_generated_tokens}.")
        return arrived / seconds

    try:
        ours(workload(4))
        theirs(workload(4))
        sides = {
            "ours_tokens_per_s": lambda _: ours(workload(tokens)),
            "bare_tokens_per_s": lambda _: theirs(workload(tokens)),
        }
        speeds = alternate(sides, repeats, warm_up=False)
    finally:
        handle.call(bare.close)
    about = {
        "model": bench.model_name(SMOLLM2),
        "bare_side": "LLM.generate, SamplingParams(max_tokens, temperature=1, ignore_eos=True), our engine arguments",
        "our_side": f"log-probs, entropy_window={ENTROPY_WINDOW}, stop={list(STOP)}",
        "sequences": questions * workload(tokens).num_trajectories,
        "generated_tokens": tokens,
    }
    results = ratio("raw_vllm_ratio", "ours_tokens_per_s", "bare_tokens_per_s", speeds, **about)
    return results | {"raw_vllm_ratio": best(speeds["ours_tokens_per_s"]) / best(speeds["bare_tokens_per_s"])}
