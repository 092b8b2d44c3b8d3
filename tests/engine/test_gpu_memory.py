"""The start of an engine on a GPU that it shares; what the GPU would say comes from stand-ins."""

from types import SimpleNamespace

import pytest
import torch

from rllib_arpo.engine import EngineConfig
from rllib_arpo.engine.memory import RESERVE
from rllib_arpo.engine.vllm import gpu_memory
from rllib_arpo.engine.vllm.gpu_memory import prepare_gpus, wait_for_memory

GB = 10**9


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Seconds slept."""
    slept: list[float] = []
    fake = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(gpu_memory, "time", fake)
    return slept


@pytest.mark.parametrize(
    ("free", "waits", "arrives"),
    [([10], 0, True), ([8], 0, True), ([4, 6, 4, 10], 3, True), ([4] * 241, 240, False)],
)
def test_an_engine_waits_until_its_predecessor_is_gone(clock, caplog, free, waits, arrives):
    """Two minutes at most."""
    left = iter(free)
    assert wait_for_memory(lambda: (next(left) * GB, 10 * GB), 8 * GB) == arrives
    assert clock == [0.5] * waits
    warned = ["The engine waits for 8.0 GB of its GPU; 4.0 GB are free."] * bool(waits)
    assert [record.getMessage() for record in caplog.records] == warned


def vllm_config(utilization: float, kv_cache: int | None = None, parallel: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            kv_cache_memory_bytes=kv_cache, gpu_memory_utilization=utilization, cache_dtype="auto"
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192, max_num_seqs=256),
        parallel_config=SimpleNamespace(tensor_parallel_size=parallel),
    )


@pytest.fixture
def waited(monkeypatch) -> list[tuple[int, int]]:
    """(free, needed) of each wait.

    On GPUs of 20 GB, of which CUDA says that 9 are free, and the driver that 15 and 14 are.
    """
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9 * GB, 20 * GB))
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda device: (5 + device) * GB)
    monkeypatch.setattr(gpu_memory, "current_platform", SimpleNamespace(get_device_total_memory=lambda device: 20 * GB))
    waits: list[tuple[int, int]] = []
    monkeypatch.setattr(gpu_memory, "wait_for_memory", lambda read, needed: waits.append((read()[0], needed)))
    return waits


def test_an_engine_that_shares_its_gpu_does_not_measure_its_cache(model_folder, waited):
    """The tiny Llama has 90,624 parameters, hidden size 64, intermediate size 128 and 259 words."""
    vllm = vllm_config(0.4)
    prepare_gpus(vllm, EngineConfig(model_folder, max_context_tokens=512, shares_gpu=True))
    own = 8192 * (4 * 64 + 3 * 128) * 2 + 5 * 256 * 259 * 4 + RESERVE
    assert vllm.cache_config.kv_cache_memory_bytes == 8 * GB - 2 * 90_624 - own
    assert waited == [(9 * GB, 8 * GB)]


@pytest.mark.parametrize(
    ("shares_gpu", "kv_cache", "parallel", "waits"),
    [
        (False, None, 1, [(9 * GB, 8 * GB)]),
        (True, 640, 1, [(9 * GB, 8 * GB)]),
        (False, None, 2, [(15 * GB, 8 * GB), (14 * GB, 8 * GB)]),
    ],
)
def test_other_caches_are_left_alone(model_folder, waited, shares_gpu, kv_cache, parallel, waits):
    vllm = vllm_config(0.4, kv_cache, parallel)
    prepare_gpus(vllm, EngineConfig(model_folder, shares_gpu=shares_gpu))
    assert vllm.cache_config.kv_cache_memory_bytes == kv_cache
    assert waited == waits
