"""The rollout in bf16: 256 sequences against `vllm.LLM`, with 0.5B and with 1.5B; what forks and entropies cost."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from release.benchmarks.common.bench import Bench, EngineHandle, alternate, engine_config, rounded
from release.benchmarks.rollout import entropy_probe, forks
from release.benchmarks.rollout.raw_vllm import bare_arguments, generate, rollout
from release.benchmarks.rollout.workload import Workload
from rllib_arpo.engine import EngineConfig
from tests.gpu.workbench import DEVICE, DTYPE, SIZES, Shape, Sizes, random_qwen3

#: Tokens per second of ours / of vLLM.
OF_VLLM = 0.95


@dataclass
class OneEngine(Bench):
    """A run of the rollout's benchmarks in which one engine takes the place of all others."""

    handle: EngineHandle | None = None

    def model_name(self, name: str) -> str:
        return Path(self.handle.config.model_name_or_path).name

    def engine(self, name: str) -> EngineHandle:
        return self.handle


@pytest.fixture(scope="module")
def engine() -> Iterator[Callable[[EngineConfig], EngineHandle]]:
    """Gives the engine of a model, which starts once."""
    started: dict[str, EngineHandle] = {}

    def get(config: EngineConfig) -> EngineHandle:
        folder = config.model_name_or_path
        if folder not in started:
            started[folder] = EngineHandle(config)
        return started[folder]

    yield get
    for handle in started.values():
        handle.close()


def config_of(shape: Shape, sizes: Sizes, work: Path) -> EngineConfig:
    return engine_config(random_qwen3(shape, work), DTYPE, **sizes.engine_kwargs())


@pytest.mark.parametrize("shape", [SIZES.small, SIZES.large], ids=["0.5B", "1.5B"])
def test_speed_against_vllm(shape, engine, sizes, work, figures):
    """In turn, both with the same prompts. The other process loads vLLM while ours starts."""
    config = config_of(shape, sizes, work)
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
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(load_vllm, DEVICE == "cpu")
        ours = engine(config)
        pool.submit(start_vllm, bare_arguments(config)).result()
        sides = {
            "ours": lambda repeat: rollout(ours, workloads[repeat]),
            "vllm": lambda repeat: pool.submit(vllm_speed, workloads[repeat]).result(),
        }
        speeds = alternate(sides, sizes.repeats)
    best = {name: max(values) for name, values in speeds.items()}
    detail = {f"{name}_tokens_per_s": rounded(values, 1) for name, values in speeds.items()}
    figures.add("speed / that of vllm.LLM", best["ours"] / best["vllm"], at_least=OF_VLLM, is_speed=True, detail=detail)
    figures.add(f"{sizes.questions * sizes.trajectories} sequences", best["ours"], "tokens/s")


def load_vllm(as_ours: bool) -> None:
    """Args: `as_ours`: scheduler and model in one process, as our engine has them and CPUs need it, not vLLM's way."""
    if as_ours:
        import rllib_arpo.engine.vllm  # noqa: F401
    else:
        # Our engine has set it in the process that started this one.
        os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    import vllm  # noqa: F401


def start_vllm(arguments: Mapping[str, Any]) -> None:
    from vllm import LLM

    globals()["_LLM"] = LLM(**arguments)


def vllm_speed(workload: Workload) -> float:
    return generate(globals()["_LLM"], workload)


@pytest.fixture
def bench(engine, sizes, work) -> OneEngine:
    handle = engine(config_of(sizes.small, sizes, work))
    return OneEngine(work, "tiny" if sizes.is_tiny else "full", handle=handle)


def test_the_cost_of_entropies(bench, figures):
    measured = entropy_probe.overhead(bench)
    for key, name, most in (
        (entropy_probe.OVERHEAD, "of the first 16 of 256 tokens", 0.03),
        (entropy_probe.OVERHEAD_ALL, "of all tokens", None),
    ):
        name, detail = f"share of time for entropies {name}", measured[f"{key}_detail"]
        figures.add(name, measured[key], at_most=most, is_speed=True, detail=detail)


def test_the_cost_of_forks(bench, figures):
    measured = forks.forks(bench)
    detail = measured[f"{forks.CACHED}_detail"]
    figures.add("prefix tokens of forks from the cache", measured[forks.CACHED], at_least=0.95, detail=detail)
    detail = measured[f"{forks.COST}_detail"]
    figures.add("tokens computed for 16 forks / for one request", measured[forks.COST], at_most=0.6, detail=detail)
