"""Tests that need a CUDA device, `pytest -m gpu`: each file is a part of `release/gpu_check.py`, which runs them.

They say whether the results are right, and measure. With GPU_CHECK=tiny those that take `sizes` also run on a CPU, with
tiny models. GPU_CHECK_WORK names a folder that keeps the models, GPU_CHECK_REPORT a file with a line of JSON for each
figure and each test, which are there as soon as they are known.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.conftest import llama_folder  # noqa: F401
from tests.gpu.workbench import DEVICE, DTYPE, SIZES, Figures, Sizes, random_qwen3, tell
from tests.helpers.model_fixtures import random_pass  # noqa: F401
from tests.helpers.models import tiny_model

_SKIP = pytest.mark.skip(reason="needs a CUDA device: torch.cuda.is_available() is False")
#: vLLM's model runners: value of VLLM_USE_V2_MODEL_RUNNER.
RUNNERS = {"older": "0", "newer": "1"}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available() and not (SIZES.is_tiny and "sizes" in item.fixturenames):
                item.add_marker(_SKIP)


def pytest_runtest_logreport(report: pytest.TestReport):
    """Of a test's three phases, its call counts, and what does not pass before or after it."""
    if report.when == "call" or not report.passed:
        error = getattr(report.longrepr, "reprcrash", None)
        reason = error.message if error else report.longrepr[2] if report.skipped else report.longreprtext
        line = reason.removeprefix("Skipped: ").partition("\n")[0]
        tell(test=_name(report.nodeid), status=report.outcome, reason=line)


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


@pytest.fixture(scope="session", autouse=True)
def where() -> None:
    """The report says on which device, from which commit and with which versions it was made."""
    from rllib_arpo.tracking.machine import commit, versions

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    tell(device=device, commit=commit(), versions=versions())


@pytest.fixture(scope="session")
def sizes() -> Sizes:
    return SIZES


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    """A folder that may have the models of an earlier run."""
    folder = os.environ.get("GPU_CHECK_WORK")
    return Path(folder) if folder else tmp_path_factory.mktemp("work")


@pytest.fixture
def figures(request, sizes) -> Iterator[Figures]:
    """A test that misses a target goes on and fails at its end."""
    figures = Figures(_name(request.node.nodeid), judges_speed=not sizes.is_tiny)
    yield figures
    assert figures.missed == []


@pytest.fixture(scope="module")
def learner(sizes, work):
    """Of the large model in bf16, on the GPU if there is one; its configuration may be changed."""
    from release.benchmarks.learner.sides import build_learner

    learner = build_learner(random_qwen3(sizes.large, work), DTYPE, num_gpus=int(DEVICE == "cuda"))
    learner.config = learner.config.copy(copy_frozen=False)
    return learner


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory) -> str:
    """The same architecture with other weights."""
    return tiny_model(tmp_path_factory.mktemp("other"), vocab_size=300, seed=5)


@pytest.fixture
def own_ray() -> Iterator[None]:
    """A Ray of its own, with all GPUs, and the environment "Parity-v0"."""
    from ray import tune

    from tests.helpers import clusters
    from tests.helpers.parity_env import ParityEnv

    with clusters.own_ray(log_to_driver=False):
        tune.register_env("Parity-v0", ParityEnv)
        yield


def start_engine(folder: str, runner: str, dtype: str = "float32", can_sleep: bool = False, **engine_kwargs):
    """An engine on `runner`; CUDA graphs are used unless `enforce_eager` says no."""
    from rllib_arpo.engine import EngineConfig, make_engine

    if runner == "newer" and not importlib.util.find_spec("vllm.v1.worker.gpu.sample.logits_processor"):
        pytest.skip("this vLLM's newer model runner takes no logits processors")
    ours = {"gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": 256 << 20, "block_size": 32, "max_logprobs": 300}
    config = EngineConfig(
        folder, dtype=dtype, max_context_tokens=512, can_sleep=can_sleep, engine_kwargs=ours | engine_kwargs
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", RUNNERS[runner])
        engine = make_engine("vllm", config)
        assert engine._llm.vllm_config.use_v2_model_runner == (runner == "newer")
    return engine
