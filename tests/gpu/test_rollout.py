"""The rollout on one engine in bf16: 256 sequences against `vllm.LLM`, and what entropies and forks cost."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from release.benchmarks.common.bench import Bench, EngineHandle, rounded
from release.benchmarks.rollout import entropy_probe, forks
from release.benchmarks.rollout.raw_vllm import bare_arguments, generate, rollout
from release.benchmarks.rollout.workload import Workload
from tests.gpu.workbench import DEVICE, DTYPE, Figures, random_qwen3

#: Tokens per second of ours / of vLLM.
OF_VLLM = 0.95


@dataclass
class OneEngine(Bench):
    """A run of the rollout's benchmarks in which one engine takes the place of all others."""

    handle: EngineHandle | None = None

    def model_name(self, name: str) -> str:
        return Path(self.handle.folder).name

    def engine(self, name: str) -> EngineHandle:
        return self.handle


def test_rollouts(sizes, work, figures):
    # Of each repeat, the one that does not count first; both sides have the same prompts.
    workloads = [
        Workload(
            sizes.turn_tokens,
            num_questions=sizes.questions,
            num_trajectories=sizes.trajectories,
            num_turns=1,
            prompt_tokens=sizes.prompt_tokens,
            seed=seed,
        )
        for seed in range(sizes.repeats + 1)
    ]
    handle = EngineHandle(random_qwen3(sizes.small, work), DTYPE, sizes.engine_kwargs())
    try:
        ours = [rollout(handle, workload) for workload in workloads][1:]
        arguments = handle.call(bare_arguments, handle.config)
        add_costs(OneEngine(work, "tiny" if sizes.is_tiny else "full", handle=handle), figures)
    finally:
        handle.close()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        theirs = pool.submit(vllm_speeds, arguments, workloads, DEVICE == "cpu").result()
    detail = {"ours_tokens_per_s": rounded(ours, 1), "vllm_tokens_per_s": rounded(theirs, 1)}
    figures.add(f"{sizes.questions * sizes.trajectories} sequences", max(ours), "tokens/s", detail=detail)
    figures.add("speed / that of vllm.LLM", max(ours) / max(theirs), at_least=OF_VLLM, is_speed=True)


def add_costs(bench: OneEngine, figures: Figures) -> None:
    measured = forks.forks(bench)
    detail = measured[f"{forks.CACHED}_detail"]
    figures.add("prefix tokens of forks from the cache", measured[forks.CACHED], at_least=0.95, detail=detail)
    detail = measured[f"{forks.COST}_detail"]
    figures.add("tokens computed for 16 forks / for one request", measured[forks.COST], at_most=0.6, detail=detail)
    measured = entropy_probe.overhead(bench)
    for key, name, most in (
        (entropy_probe.OVERHEAD, "of the first 16 of 256 tokens", 0.03),
        (entropy_probe.OVERHEAD_ALL, "of all tokens", None),
    ):
        name, detail = f"share of time for entropies {name}", measured[f"{key}_detail"]
        figures.add(name, measured[key], at_most=most, is_speed=True, detail=detail)


def vllm_speeds(arguments: Mapping[str, Any], workloads: Sequence[Workload], as_ours: bool) -> list[float]:
    """Tokens per second of vLLM's `LLM` in a process of its own, with vLLM's own settings.

    Args:
        as_ours: scheduler and model in one process, as our engine has them and as CPUs need it; False: where vLLM puts
            them.
    """
    if as_ours:
        import rllib_arpo.engine.vllm  # noqa: F401
    else:
        # Our engine has set it in the process that started this one.
        os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    from vllm import LLM

    llm = LLM(**arguments)
    return [generate(llm, workload) for workload in workloads][1:]
