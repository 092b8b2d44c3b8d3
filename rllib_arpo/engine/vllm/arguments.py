"""Makes vLLM's input: the arguments of an engine, and the prompt and the sampling parameters of a request."""

import dataclasses
from typing import Any

from vllm import EngineArgs, SamplingParams
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext

from rllib_arpo.engine.engine import EngineConfig, GenerationRequest
from rllib_arpo.engine.vllm_versions import (
    CPU_KV_CACHE_BYTES,
    FROM_CONFIGURATION,
    GPU_MEMORY_UTILIZATION,
    check_vllm_kwargs,
)
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.policy.causal_lm import layer_kinds
from rllib_arpo.policy.checkpoint_names import causal_lm_config

#: Both probes are given by name, since worker processes import them as well.
ENTROPY_PROCESSOR = "rllib_arpo.engine.vllm.entropy_processor:EntropyProcessor"
ENTROPY_PROCESSOR_V2 = "rllib_arpo.engine.vllm.entropy_processor_v2:EntropyProcessorV2"


def engine_args(config: EngineConfig) -> EngineArgs:
    """vLLM's arguments: ours, the platform's defaults, then `engine_kwargs`.

    Raises:
        ValueError: `engine_kwargs` has an unknown key, or a key or value that ARPO refuses.
    """
    ours = {
        "model": config.model_name_or_path,
        "dtype": config.dtype,
        "max_model_len": config.max_context_tokens,
        "seed": config.seed,
        "logprobs_mode": "processed_logprobs",
        # First come, first served, since every request has priority 0; only `score` overtakes the queue.
        "scheduling_policy": "priority",
        "logits_processors": [ENTROPY_PROCESSOR],
    }
    if config.weight_transfer is not None:
        ours["weight_transfer_config"] = {"backend": config.weight_transfer}
    assert ours.keys() <= FROM_CONFIGURATION
    check_vllm_kwargs(config.engine_kwargs)
    check_known(config.engine_kwargs, [field.name for field in dataclasses.fields(EngineArgs)], "key of engine_kwargs")
    model_config = causal_lm_config(config.model_name_or_path)
    defaults: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
    if current_platform.is_cpu():
        defaults |= {
            "enforce_eager": True,
            "block_size": 32,
            "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
            # Chunked prefill of a seeded request crashes: CPU generators have no offset that vLLM could restore.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(8192, config.max_context_tokens),
        }
        if layer_kinds(model_config).reach is not None:
            # vLLM caches states only together with chunked prefill.
            defaults |= {"enable_prefix_caching": False}
    else:
        defaults |= {"async_scheduling": True, "gpu_memory_utilization": GPU_MEMORY_UTILIZATION}
    # vLLM would otherwise build a vision-language model whole, and name its weights in another way.
    defaults |= {"hf_overrides": {"architectures": model_config.architectures}}
    if config.can_sleep:
        if not current_platform.is_sleep_mode_available():
            raise ValueError(f"sleep_level: vLLM cannot put an engine to sleep on a {current_platform.device_type}.")
        defaults |= {"enable_sleep_mode": True}
    if config.engine_kwargs.get("tensor_parallel_size", 1) > 1:
        # In a placement group, such as a Tune trial's, vLLM would ask Ray to start the workers, on other GPUs.
        defaults |= {"distributed_executor_backend": "mp"}
    return EngineArgs(**(defaults | config.engine_kwargs | ours))


def usage_context() -> UsageContext:
    """vLLM chooses its batch sizes by this context: `LLM_CLASS` means 1,024 sequences on large GPUs, 256 on others."""
    return UsageContext.ENGINE_CONTEXT if current_platform.is_cpu() else UsageContext.LLM_CLASS


def choose_entropy_processor(config: VllmConfig) -> None:
    """Names the entropy probe for the model runner that vLLM has chosen.

    Users choose the runner by VLLM_USE_V2_MODEL_RUNNER. If vLLM's newer runner takes no logits processors, vLLM uses
    the older runner as soon as there are any; therefore `engine_args` names the older probe.
    """
    if config.use_v2_model_runner:
        config.model_config.logits_processors = [ENTROPY_PROCESSOR_V2]


def check_request(request: GenerationRequest, max_context_tokens: int, vocab_size: int) -> None:
    """Raises ValueError for requests that vLLM would refuse with other exceptions, or that would fail within a step."""
    prompt = request.prompt_token_ids
    if not 0 < len(prompt) < max_context_tokens:
        raise ValueError(
            f"Request {request.request_id!r} has a prompt of {len(prompt)} tokens: it must have at least one, and "
            f"fewer than max_context_tokens={max_context_tokens}."
        )
    if not (min(prompt) >= 0 and max(prompt) < vocab_size):
        raise ValueError(f"Request {request.request_id!r} has token ids outside of 0..{vocab_size - 1}.")
    if request.max_entropies and request.reshaping.repetition_penalty != 1:
        # vLLM's older runner applies the penalty after the probe, the newer one before it.
        raise ValueError(
            f"Request {request.request_id!r} has a repetition penalty, with which entropies cannot be measured."
        )


def token_prompt(token_ids: list[int]) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": list(token_ids)}


def sampling_params(request: GenerationRequest) -> SamplingParams:
    window = {"size": request.max_entropies, "estimator": request.entropy_estimator}
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.reshaping.top_p,
        top_k=request.reshaping.top_k,
        repetition_penalty=request.reshaping.repetition_penalty,
        seed=request.seed,
        # The engine looks for stop strings itself (`stop_strings`).
        detokenize=False,
        logprobs=0,
        extra_args={"entropy_window": window} if request.max_entropies else None,
        output_kind=RequestOutputKind.DELTA,
    )
