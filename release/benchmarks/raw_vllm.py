"""Our rollout without tools against `LLM.generate` of bare vLLM, on the same prompts and token counts."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from bench import ENGINE_KWARGS, MAX_CONTEXT_TOKENS, SMOLLM2, Bench, BenchmarkError, alternate, median, rounded, timed
from workload import STOP, Workload, our_rollout

KEY = "raw_vllm_ratio"
ENTROPY_WINDOW = 16


class BareVLLM:
    """vLLM's `LLM` with the engine arguments of ours, but without our logits processor and our log-prob mode."""

    def __init__(self, folder: str):
        from vllm import LLM

        self._llm = LLM(
            folder,
            dtype="float32",
            max_model_len=MAX_CONTEXT_TOKENS,
            block_size=32,
            enforce_eager=True,
            enable_chunked_prefill=False,
            max_num_batched_tokens=8192,
            **ENGINE_KWARGS,
        )

    def generate(self, workload: Workload, detokenize: bool) -> int:
        """Generates the workload's first turns; returns the number of tokens."""
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=workload.turn_tokens, temperature=1.0, ignore_eos=True, detokenize=detokenize
        )
        prompts = [
            {"prompt_token_ids": workload.prompt(question)}
            for question in range(workload.num_questions)
            for _ in range(workload.num_trajectories)
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def raw_vllm(bench: Bench) -> dict[str, Any]:
    """Tokens per second, ours / bare: with entropies of the first 16 tokens, log-probs and stop strings on our side."""
    repeats, tokens, questions = bench.pick(full=(5, 128, 4), quick=(4, 64, 2), tiny=(1, 8, 2))
    seeds = itertools.count()
    # Both share torch.distributed; the first one that is built sets it up, and takes it down when it is closed.
    with bench.engine(SMOLLM2) as handle, contextlib.ExitStack() as stack:
        bare = handle.call(BareVLLM, handle.folder)
        stack.callback(handle.call, bare.close)

        def workload() -> Workload:
            return Workload(tokens, num_questions=questions, num_turns=1, seed=next(seeds))

        def ours(stop: tuple[str, ...]) -> float:
            work = workload()
            seconds, _ = timed(our_rollout, handle, work, entropy_window=ENTROPY_WINDOW, deterministic=False, stop=stop)
            return work.num_generated_tokens / seconds

        def theirs(detokenize: bool) -> float:
            work = workload()
            seconds, arrived = timed(handle.call, bare.generate, work, detokenize)
            if arrived != work.num_generated_tokens:
                raise BenchmarkError(f"Bare vLLM generated {arrived} tokens instead of {work.num_generated_tokens}.")
            return arrived / seconds

        speeds = alternate(
            {
                "ours": lambda _: ours(STOP),
                "bare": lambda _: theirs(detokenize=True),
                "ours_without_stop_strings": lambda _: ours(()),
                "bare_without_text": lambda _: theirs(detokenize=False),
            },
            repeats,
        )
    return {KEY: _ratio(speeds, "ours", "bare"), f"{KEY}_detail": _detail(bench, speeds, workload())}


def _ratio(speeds: dict[str, list[float]], one: str, other: str) -> float:
    return median([a / b for a, b in zip(speeds[one], speeds[other], strict=True)])


def _detail(bench: Bench, speeds: dict[str, list[float]], work: Workload) -> dict[str, Any]:
    return {
        "sides": ["ours_tokens_per_s", "bare_tokens_per_s"],
        **{f"{name}_tokens_per_s": rounded(values, 1) for name, values in speeds.items()},
        "ratio_without_stop_strings_to_bare": round(_ratio(speeds, "ours_without_stop_strings", "bare"), 4),
        "ratio_to_bare_without_text": round(_ratio(speeds, "ours", "bare_without_text"), 4),
        "model": bench.model_name(SMOLLM2),
        "bare_side": "LLM.generate, SamplingParams(max_tokens, temperature=1, ignore_eos=True), our engine arguments",
        "our_side": f"log-probs, entropy_window={ENTROPY_WINDOW}, stop={list(STOP)}",
        "sequences": work.num_questions * work.num_trajectories,
        "prompt_tokens": work.prompt_tokens,
        "generated_tokens": work.turn_tokens,
        "repeats": len(speeds["ours"]),
    }
