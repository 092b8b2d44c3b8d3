"""vLLM's `LLM` in a process of its own, with vLLM's own settings: what the rollout is compared with."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

#: A batch of prompts, each a list of token ids.
Batch = Sequence[Sequence[int]]


def speeds_in_own_process(
    arguments: Mapping[str, Any], batches: Sequence[Batch], max_tokens: int, *, as_ours: bool
) -> list[float]:
    """Generated tokens per second of each batch, after a first one that does not count.

    Args:
        arguments: of `LLM`.
        max_tokens: of each sequence; all sequences have as many.
        as_ours: scheduler and model in one process, as our engine has them and as CPUs need it; False: where vLLM puts
            them.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_speeds, arguments, batches, max_tokens, as_ours).result()


def _speeds(arguments: Mapping[str, Any], batches: Sequence[Batch], max_tokens: int, as_ours: bool) -> list[float]:
    if as_ours:
        import rllib_arpo.engine.vllm  # noqa: F401
    else:
        # Our engine has set it in the process that started this one.
        os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    from vllm import LLM, SamplingParams

    llm = LLM(**arguments)
    params = SamplingParams(max_tokens=max_tokens, temperature=1.0, ignore_eos=True)
    return [_speed(llm, batch, params) for batch in batches][1:]


def _speed(llm: Any, batch: Batch, params: Any) -> float:
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in batch]
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    if num_tokens != len(batch) * params.max_tokens:
        raise RuntimeError(f"vLLM generated {num_tokens} tokens instead of {len(batch) * params.max_tokens}.")
    return num_tokens / seconds
