"""Reads the sizes of learners and engines from a run's configuration; decides `gradient_checkpointing="auto"`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rllib_arpo.engine.memory import EngineShape, kv_cache_bytes
from rllib_arpo.engine.vllm_versions import CPU_KV_CACHE_BYTES, GPU_MEMORY_UTILIZATION
from rllib_arpo.learner.memory_budget import AUTO, LearnerShape
from rllib_arpo.learner.placement import Decision, decide_checkpointing
from rllib_arpo.policy.compilation import LAYERS
from rllib_arpo.policy.llm_rl_module import COMPUTE_DTYPES
from rllib_arpo.policy.lm_head import CHUNK_SIZES, KEPT_BYTES
from rllib_arpo.policy.model_shape import model_shape
from rllib_arpo.weights.transports import shares_gpu

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def learner_shape(config: AlgorithmConfig) -> LearnerShape:
    """The learners' sizes; with `learner_compile="auto"` it assumes that machines with GPUs can compile."""
    number, gpus = max(config.num_learners, 1), float(config.num_gpus_per_learner)
    return LearnerShape(
        number=number,
        gpus=gpus,
        sharded=config.sharding == "fsdp2" and number > 1,
        reference=config.kl_coeff > 0,
        offload=config.optimizer_offload,
        checkpointing=None if config.gradient_checkpointing == AUTO else config.gradient_checkpointing,
        tokens_per_pass=config.max_tokens_per_pass,
        compute_bytes=COMPUTE_DTYPES[config.dtype].itemsize,
        head_chunk=CHUNK_SIZES["cuda" if gpus else "cpu"],
        head_kept=KEPT_BYTES,
        compiled=config.learner_compile == LAYERS or (config.learner_compile == AUTO and gpus > 0),
        remote=config.num_learners > 0,
    )


def engine_shape(config: AlgorithmConfig) -> EngineShape:
    """The engines' sizes, evaluation's included; it counts only engines of vLLM."""
    engine = _engines(config)
    evaluation = config.get_evaluation_config_object() if config.evaluation_num_env_runners else None
    if evaluation is None:
        return engine
    own = _engines(evaluation)
    if replace(own, number=engine.number) == engine:
        return replace(engine, number=engine.number + own.number)
    return replace(engine, evaluation=own)


def _engines(config: AlgorithmConfig) -> EngineShape:
    kwargs = config.engine_kwargs
    counted = config.engine == "vllm"
    in_learner = counted and config.num_env_runners == 0
    separate = counted * config.num_env_runners
    gpus = float(config.num_gpus_per_env_runner) if separate else 0.0
    on_cpu = gpus == 0 and not (in_learner and config.num_gpus_per_learner > 0)
    weight_bytes = COMPUTE_DTYPES[config.dtype].itemsize
    return EngineShape(
        number=separate + in_learner,
        gpus=gpus,
        in_learner=in_learner,
        parallel=kwargs.get("tensor_parallel_size", 1),
        weight_bytes=weight_bytes,
        kv_bytes=kv_cache_bytes(str(kwargs.get("kv_cache_dtype", "auto")), weight_bytes),
        utilization=kwargs.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION),
        kv_cache=kwargs.get("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES if on_cpu else None),
        context_tokens=config.max_context_tokens,
        sleeps=config.sleep_level > 0,
        shares_gpu=shares_gpu(config),
        batched_tokens=kwargs.get("max_num_batched_tokens"),
        sequences=kwargs.get("max_num_seqs"),
    )


def decide_here(config: AlgorithmConfig, device: torch.device, compiled: bool) -> Decision:
    """The decision for a learner in this process; `compiled` says whether its layers are compiled."""
    from ray._common.utils import get_system_memory

    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else get_system_memory()
    learner = replace(learner_shape(config), compiled=compiled)
    model = model_shape(str(config.model_name_or_path), config.lora)
    return decide_checkpointing(model, learner, engine_shape(config), memory)
