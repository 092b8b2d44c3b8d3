"""Engines on a GPU that others use: two that start at once, and one whose predecessor is still ending."""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.engine.engine import GenerationRequest
from rllib_arpo.engine.memory import own_terms
from rllib_arpo.policy.model_shape import model_shape
from tests.engine.conftest import run
from tests.gpu.conftest import start_engine
from tests.gpu.workbench import DTYPE, FULL, random_qwen3

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
#: Of a GPU, for each of two engines.
PART = 0.3
#: Seconds after which the predecessor gives its memory back.
LATE_S = 5.0


def use_engine(folder: str) -> tuple[int, int]:
    """Runs as many requests as fit into a step; returns the bytes of the KV cache and of the engine's own values.

    The engine stays until its process ends.
    """
    config = EngineConfig(folder, DTYPE, 1024, shares_gpu=True, engine_kwargs={"gpu_memory_utilization": PART})
    globals()["_ENGINE"] = engine = make_engine("vllm", config)
    vllm_config = engine._llm.vllm_config
    prompt = [10 + i % 200 for i in range(512)]
    number = vllm_config.scheduler_config.max_num_seqs
    run(engine, *(GenerationRequest(str(i), [i, *prompt], 64, entropy_window=20, seed=i) for i in range(number)))
    from rllib_arpo.engine.vllm.gpu_memory import engine_shape

    total = torch.cuda.get_device_properties(0).total_memory
    own = own_terms(model_shape(folder), engine_shape(vllm_config, config), total)
    return vllm_config.cache_config.kv_cache_memory_bytes, sum(term.bytes for term in own)


def test_two_engines_that_start_at_once_keep_to_their_parts(work, figures):
    folder = random_qwen3(FULL.small, work)
    free, total = torch.cuda.mem_get_info()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        (cache, own), other = pool.map(use_engine, [folder] * 2)
        used = (free - torch.cuda.mem_get_info()[0]) / 2
    assert (cache, own) == other
    measured = used - cache - 2 * model_shape(folder).parameters
    detail = {"used": used, "kv_cache": cache, "own_values_computed": own, "own_values": measured, "gpu": total}
    figures.add("memory of an engine / its part", used / (PART * total), at_most=1.0, detail=detail)
    figures.add("an engine's own values / those computed", measured / own)


def hold(num_bytes: int, seconds: float) -> None:
    globals()["_HELD"] = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    time.sleep(seconds)


def test_an_engine_waits_for_its_predecessors_memory(llama_folder):
    total = torch.cuda.get_device_properties(0).total_memory
    predecessor = get_context("spawn").Process(target=hold, args=(total // 2, LATE_S))
    free = torch.cuda.mem_get_info()[0]
    predecessor.start()
    while free - torch.cuda.mem_get_info()[0] < total // 2:
        time.sleep(0.1)
    engine = start_engine(llama_folder, "older", enforce_eager=True, gpu_memory_utilization=0.6)
    engine.close()
    predecessor.join()
