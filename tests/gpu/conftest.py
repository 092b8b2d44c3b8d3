"""Tests that need a CUDA device, `pytest -m gpu`: each file is a part of `release/gpu_check.py`, which runs them.

They say whether the results are right, and measure: figures are properties of the junit XML. With GPU_CHECK=tiny those
that take `sizes` also run on a CPU, with tiny models; GPU_CHECK_WORK names a folder that keeps the models.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.workbench import FULL, TINY, Figures, Sizes
from tests.helpers.models import tiny_model

_IS_TINY = os.environ.get("GPU_CHECK") == "tiny"
_SKIP = pytest.mark.skip(reason="needs a CUDA device: torch.cuda.is_available() is False")
#: vLLM's model runners: value of VLLM_USE_V2_MODEL_RUNNER.
RUNNERS = {"older": "0", "newer": "1"}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available() and not (_IS_TINY and "sizes" in item.fixturenames):
                item.add_marker(_SKIP)


@pytest.fixture(scope="session", autouse=True)
def where(record_testsuite_property) -> None:
    """The report says on which device, from which commit and with which versions it was made."""
    from rllib_arpo.tracking.machine import commit, versions

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    record_testsuite_property("device", device)
    record_testsuite_property("commit", commit())
    record_testsuite_property("versions", versions())


@pytest.fixture(scope="session")
def sizes() -> Sizes:
    return TINY if _IS_TINY else FULL


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    """A folder that may have the models of an earlier run."""
    folder = os.environ.get("GPU_CHECK_WORK")
    return Path(folder) if folder else tmp_path_factory.mktemp("work")


@pytest.fixture
def figures(record_property, sizes) -> Iterator[Figures]:
    """A test that misses a target goes on and fails at its end."""
    figures = Figures(record_property, judges_speed=not sizes.is_tiny)
    yield figures
    assert figures.missed == []


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> str:
    """A Llama with tied embeddings; V = 300 is neither the tokenizer's size nor a multiple of vLLM's padding."""
    return tiny_model(tmp_path_factory.mktemp("llama"), vocab_size=300, seed=0)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory) -> str:
    """The same architecture with other weights."""
    return tiny_model(tmp_path_factory.mktemp("other"), vocab_size=300, seed=5)


@pytest.fixture
def own_ray() -> Iterator[None]:
    """A Ray of its own, with all GPUs, and the environment "Parity-v0"."""
    import ray
    from ray import tune

    import rllib_arpo
    from tests.helpers.parity_env import ParityEnv

    if ray.is_initialized():
        ray.shutdown()
    ray.init(include_dashboard=False, log_to_driver=False)
    rllib_arpo.register()
    tune.register_env("Parity-v0", ParityEnv)
    yield
    ray.shutdown()


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
