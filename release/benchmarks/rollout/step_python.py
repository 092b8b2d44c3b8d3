"""Compares the serial Python of an engine step outside the model: ours to bare vLLM's."""

from __future__ import annotations

import time
from typing import Any

from release.benchmarks.common.bench import TINY_LLAMA, Bench, BenchmarkError, EngineHandle, alternate, ratio
from release.benchmarks.rollout.raw_vllm import ENTROPY_WINDOW, bare_arguments
from release.benchmarks.rollout.workload import STOP, Workload
from rllib_arpo.engine.engine import GenerationRequest

RATIO, RATIO_WITHOUT_TEXT = "step_python_ratio", "step_python_ratio_without_text"
#: Lengths of a prompt and of a turn.
PROMPT_TOKENS, TURN_TOKENS = 24, 64


def step_python(bench: Bench) -> dict[str, Any]:
    """CPU time of the engine's thread in a decoding step of 256 sequences, outside the model, ours / bare vLLM's.

    While the thread schedules, updates and reports the sampled tokens, a GPU computes nothing or the previous step. We
    count the CPU time of this thread, without the calls that start the model and the sampler. A wait for the GPU does
    not count while the thread sleeps: vLLM (we read 0.32) waits for events with `blocking=True`. The work after the
    wait counts: turning copies of token ids, log-probs and entropies into arrays. Bare vLLM is its `LLMEngine` with the
    parameters of `LLM.generate`, which writes the text of all tokens, and again without text. The median of a run's
    steps counts.
    """
    sequences, repeats = bench.pick(full=(256, 9), quick=(256, 5), tiny=(4, 1))
    handle = EngineHandle(bench.model(TINY_LLAMA), engine_kwargs={"max_num_seqs": sequences})
    bare = handle.call(_start_bare, handle)
    workload = Workload(1, num_questions=sequences, num_trajectories=1, num_turns=1, prompt_tokens=PROMPT_TOKENS)
    prompts = [workload.prompt(question) for question in range(sequences)]
    sides = {
        "ours_ms": lambda _: handle.call(_ours, handle, prompts),
        "bare_ms": lambda _: handle.call(_bare, bare.llm_engine, prompts, True),
        "bare_without_text_ms": lambda _: handle.call(_bare, bare.llm_engine, prompts, False),
    }
    try:
        measured = alternate(sides, repeats)
    finally:
        handle.call(_close_bare, bare)
        handle.close()
    about = {
        "model": bench.model_name(TINY_LLAMA),
        "our_side": f"log-probs, entropy_window={ENTROPY_WINDOW}, stop={list(STOP)}",
        "bare_side": "LLMEngine, SamplingParams(max_tokens, temperature=1, ignore_eos=True)",
        "sequences": sequences,
        "generated_tokens": TURN_TOKENS,
    }
    with_text = {name: measured[name] for name in ("ours_ms", "bare_ms")}
    without_text = {name: measured[name] for name in ("ours_ms", "bare_without_text_ms")}
    return ratio(RATIO, "ours_ms", "bare_ms", with_text, **about) | ratio(
        RATIO_WITHOUT_TEXT, "ours_ms", "bare_without_text_ms", without_text, **about
    )


def _start_bare(handle: EngineHandle) -> Any:
    from vllm import LLM

    return LLM(**bare_arguments(handle.config))


def _close_bare(llm: Any) -> None:
    """Closes bare vLLM, but not torch's process groups, which our engine in this process still uses."""
    llm.llm_engine.engine_core._finalizer.detach()
    llm.llm_engine.model_executor.shutdown()


def _ours(handle: EngineHandle, prompts: list[list[int]]) -> float:
    for i, prompt in enumerate(prompts):
        request = GenerationRequest(str(i), prompt, TURN_TOKENS, stop=STOP, entropy_window=ENTROPY_WINDOW)
        handle.engine.submit(request)
    return _milliseconds(handle.llm, handle.engine.step, handle.engine.has_unfinished)


def _bare(llm: Any, prompts: list[list[int]], with_text: bool) -> float:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    for i, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=TURN_TOKENS, temperature=1.0, ignore_eos=True, detokenize=with_text)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        llm.add_request(str(i), {"prompt_token_ids": prompt}, params)
    return _milliseconds(llm, llm.step, llm.has_unfinished_requests)


def _milliseconds(llm: Any, step: Any, has_unfinished: Any) -> float:
    """Steps until all requests end; returns this thread's median CPU time in a decoding step outside the model.

    Raises:
        BenchmarkError: some requests ended early.
    """
    executor, in_model, seconds = llm.model_executor, 0.0, []

    def outside(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal in_model
            begin = time.thread_time()
            result = function(*args, **kwargs)
            in_model += time.thread_time() - begin
            return result

        return call

    executor.execute_model, executor.sample_tokens = map(outside, (executor.execute_model, executor.sample_tokens))
    try:
        while has_unfinished():
            begin, before = time.thread_time(), in_model
            step()
            seconds.append(time.thread_time() - begin - (in_model - before))
    finally:
        del executor.execute_model, executor.sample_tokens
    if len(seconds) < TURN_TOKENS:
        raise BenchmarkError(f"All requests ended within {len(seconds)} steps.")
    decoding = sorted(seconds[2:-2])
    return 1e3 * decoding[len(decoding) // 2]
