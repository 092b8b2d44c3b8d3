"""Prepares GPUs for an engine while other processes use them, or have just ended."""

import logging
import time
from collections.abc import Callable
from functools import partial

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from rllib_arpo.engine.engine import EngineConfig
from rllib_arpo.engine.memory import EngineShape, computed_kv_cache, kv_cache_bytes
from rllib_arpo.policy.model_shape import model_shape

logger = logging.getLogger("rllib_arpo")

#: How many seconds an engine waits for its part of a GPU: a process that has ended frees its memory within a few, and a
#: learner at the end of its update.
TIMEOUT_S = 120.0
_POLL_S = 0.5


def prepare_gpus(vllm_config: VllmConfig, config: EngineConfig) -> None:
    """Computes the KV cache of an engine that shares its GPU, and waits until each of its GPUs has room for it.

    Raises:
        ValueError: the engine's part of the GPU is too small.
    """
    parallel, cache = vllm_config.parallel_config.tensor_parallel_size, vllm_config.cache_config
    memory = [partial(free_and_total, device, in_this_process=parallel == 1) for device in range(parallel)]
    totals = [read()[1] for read in memory]
    if config.shares_gpu and cache.kv_cache_memory_bytes is None:
        shape = engine_shape(vllm_config, config)
        cache.kv_cache_memory_bytes = computed_kv_cache(model_shape(config.model_name_or_path), shape, min(totals))
    for read, total in zip(memory, totals, strict=True):
        wait_for_memory(read, int(cache.gpu_memory_utilization * total))


def engine_shape(vllm_config: VllmConfig, config: EngineConfig) -> EngineShape:
    """The sizes with which vLLM is about to build an engine on a shared GPU."""
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    weight_bytes = getattr(torch, config.dtype).itemsize
    return EngineShape(
        parallel=vllm_config.parallel_config.tensor_parallel_size,
        weight_bytes=weight_bytes,
        kv_bytes=kv_cache_bytes(str(cache.cache_dtype), weight_bytes),
        utilization=cache.gpu_memory_utilization,
        context_tokens=config.max_context_tokens,
        shares_gpu=True,
        batched_tokens=scheduler.max_num_batched_tokens,
        sequences=scheduler.max_num_seqs,
    )


def free_and_total(device: int, *, in_this_process: bool) -> tuple[int, int]:
    """Bytes of a GPU. If worker processes compute, it asks the GPU's driver, which makes no CUDA context here."""
    if in_this_process:
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    total = current_platform.get_device_total_memory(device)
    return total - torch.cuda.device_memory_used(device), total


def wait_for_memory(read: Callable[[], tuple[int, int]], needed: int) -> bool:
    """Waits until `needed` bytes are free; False if they are not in time (vLLM then raises its own error).

    Otherwise a restarted engine or trial could find its predecessor's memory still in use.

    Args:
        read: returns the free bytes and the total.
    """
    begin, free = time.monotonic(), read()[0]
    if free < needed:
        logger.warning("The engine waits for %.1f GB of its GPU; %.1f GB are free.", needed / 1e9, free / 1e9)
    while free < needed and time.monotonic() - begin < TIMEOUT_S:
        time.sleep(_POLL_S)
        free = read()[0]
    return free >= needed
