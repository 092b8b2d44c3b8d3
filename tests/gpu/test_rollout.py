"""The rollout in bf16: 256 sequences against `vllm.LLM`, with 0.5B and with 1.5B; what forks and entropies cost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from release.benchmarks.common.bench import Bench, EngineHandle, rounded
from release.benchmarks.rollout import entropy_probe
from release.benchmarks.rollout.raw_vllm import against_vllm
from release.benchmarks.rollout.workload import Workload
from tests.gpu.workbench import DTYPE, SIZES, Shape, random_qwen3

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


@pytest.fixture(scope="module")
def engine(sizes, work) -> Iterator[Callable[[Shape], EngineHandle]]:
    """Gives the engine of a model, which starts once."""
    started: dict[Shape, EngineHandle] = {}

    def get(shape: Shape) -> EngineHandle:
        if shape not in started:
            started[shape] = EngineHandle(random_qwen3(shape, work), DTYPE, sizes.engine_kwargs())
        return started[shape]

    yield get
    for handle in started.values():
        handle.close()


@pytest.mark.parametrize("shape", [SIZES.small, SIZES.large], ids=["0.5B", "1.5B"])
def test_speed_against_vllm(shape, engine, sizes, figures):
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
    speeds = against_vllm(lambda: engine(shape), workloads)
    ours, detail = max(speeds["ours"]), {name: rounded(values, 1) for name, values in speeds.items()}
    figures.add("speed / that of vllm.LLM", ours / max(speeds["bare"]), at_least=OF_VLLM, is_speed=True, detail=detail)
    figures.add(f"{sizes.questions * sizes.trajectories} sequences", ours, "tokens/s")


@pytest.fixture
def bench(engine, sizes, work) -> OneEngine:
    return OneEngine(work, "tiny" if sizes.is_tiny else "full", handle=engine(sizes.small))


def test_the_cost_of_entropies(bench, figures):
    measured = entropy_probe.overhead(bench)
    for key, name, most in (
        (entropy_probe.OVERHEAD, "of the first 16 of 256 tokens", 0.03),
        (entropy_probe.OVERHEAD_ALL, "of all tokens", None),
    ):
        name, detail = f"share of time for entropies {name}", measured[f"{key}_detail"]
        figures.add(name, measured[key], at_most=most, is_speed=True, detail=detail)
