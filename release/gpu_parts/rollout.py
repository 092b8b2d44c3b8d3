"""The rollout on one engine in bf16: against `vllm.LLM`, and what entropies and forks cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from release.benchmarks.common.bench import Bench, EngineHandle, best, num_cores, rounded, timed
from release.benchmarks.rollout import entropy_probe, forks
from release.benchmarks.rollout.raw_vllm import ENTROPY_WINDOW, bare_arguments
from release.benchmarks.rollout.workload import Workload, our_rollout
from release.gpu_parts.bare_vllm import speeds_in_own_process
from release.gpu_parts.engines import DTYPE, engine_kwargs
from release.gpu_parts.models import random_qwen2
from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes

#: Tokens per second of ours / of vLLM.
OF_VLLM = 0.95


@dataclass
class OneEngine(Bench):
    """A run of the rollout's benchmarks in which one engine takes the place of all others."""

    handle: EngineHandle | None = None

    def model_name(self, name: str) -> str:
        return Path(self.handle.folder).name

    def engine(self, name: str, num_threads: int | None = None) -> EngineHandle:
        return self.handle


def run(sizes: Sizes, report: Report, work: Path) -> None:
    folder = random_qwen2(sizes.small, work)
    handle = EngineHandle(folder, num_cores(), DTYPE, engine_kwargs(sizes))
    try:
        ours = [_our_speed(handle, workload) for workload in _workloads(sizes)][1:]
        arguments = handle.call(bare_arguments, handle.config)
        bench = OneEngine(work, "tiny" if sizes.is_tiny else "full", handle=handle)
        with report.attempt("cost of entropies"):
            _entropies(bench, report)
        with report.attempt("cost of forks"):
            _forks(bench, report)
    finally:
        handle.close()
    # Our engine notices at once what a request's sampler decides; vLLM's default runs a step ahead.
    arguments.pop("async_scheduling", None)
    batches = [_prompts(workload) for workload in _workloads(sizes)]
    on_gpu = torch.cuda.is_available()
    theirs = speeds_in_own_process(arguments, batches, sizes.rollout.turn_tokens, as_ours=not on_gpu)
    detail = {"ours_tokens_per_s": rounded(ours, 1), "vllm_tokens_per_s": rounded(theirs, 1)}
    sequences = sizes.rollout.num_questions * sizes.rollout.num_trajectories
    report.add(f"rollout of {sequences} sequences", best(ours), "tokens/s", detail=detail)
    ratio = best(ours) / best(theirs)
    report.add(f"rollout of {sequences} sequences / vllm.LLM", ratio, at_least=OF_VLLM, is_speed=True)


def _workloads(sizes: Sizes) -> list[Workload]:
    """Of each repeat, the one that does not count first; both sides have the same prompts."""
    rollout = sizes.rollout
    return [
        Workload(
            rollout.turn_tokens,
            num_questions=rollout.num_questions,
            num_trajectories=rollout.num_trajectories,
            num_turns=1,
            prompt_tokens=rollout.prompt_tokens,
            seed=seed,
        )
        for seed in range(sizes.repeats + 1)
    ]


def _prompts(workload: Workload) -> list[list[int]]:
    questions = range(workload.num_questions)
    return [workload.prompt(question) for question in questions for _ in range(workload.num_trajectories)]


def _our_speed(handle: EngineHandle, workload: Workload) -> float:
    """Tokens per second with log-probs, entropies of the first tokens and stop strings."""
    seconds, _ = timed(our_rollout, handle, workload, entropy_window=ENTROPY_WINDOW, deterministic=False)
    return workload.num_generated_tokens / seconds


def _entropies(bench: OneEngine, report: Report) -> None:
    measured = entropy_probe.overhead(bench)
    for key, name, most in (
        (entropy_probe.OVERHEAD, "of the first 16 of 256 tokens", 0.03),
        (entropy_probe.OVERHEAD_ALL, "of all tokens", None),
    ):
        name, detail = f"share of time for entropies {name}", measured[f"{key}_detail"]
        report.add(name, measured[key], at_most=most, is_speed=True, detail=detail)


def _forks(bench: OneEngine, report: Report) -> None:
    measured = forks.forks(bench)
    detail = measured[f"{forks.CACHED}_detail"]
    report.add("prefix tokens of forks from the cache", measured[forks.CACHED], at_least=0.95, detail=detail)
    detail = measured[f"{forks.COST}_detail"]
    report.add("tokens computed for 16 forks / for one request", measured[forks.COST], at_most=0.6, detail=detail)
