"""Tests that need a CUDA device: `pytest -m gpu` on a machine that has one; elsewhere they are skipped.

They say whether the results are right; `release/gpu_check.py` runs them, and measures speeds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rllib_arpo.engine import EngineConfig, make_engine
from tests.helpers.models import tiny_model

_SKIP = pytest.mark.skip(reason="needs a CUDA device: torch.cuda.is_available() is False")
#: vLLM's model runners: value of VLLM_USE_V2_MODEL_RUNNER.
RUNNERS = {"older": "0", "newer": "1"}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(_SKIP)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory) -> str:
    """A Llama with tied embeddings; V = 300 is neither the tokenizer's size nor a multiple of vLLM's padding."""
    return tiny_model(tmp_path_factory.mktemp("llama"), vocab_size=300, seed=0)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory) -> str:
    """The same architecture with other weights."""
    return tiny_model(tmp_path_factory.mktemp("other"), vocab_size=300, seed=5)


@pytest.fixture
def ray_with_the_gpu() -> Iterator[None]:
    """A Ray of its own, with all GPUs."""
    import ray

    import rllib_arpo

    if ray.is_initialized():
        ray.shutdown()
    ray.init(include_dashboard=False, log_to_driver=False)
    rllib_arpo.register()
    yield
    ray.shutdown()


def start_engine(folder: str, runner: str, dtype: str = "float32", can_sleep: bool = False, **engine_kwargs):
    """An engine on `runner`; CUDA graphs are used unless `enforce_eager` says no."""
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
