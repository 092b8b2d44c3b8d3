"""The packed weights of experts on CPUs."""

from typing import Any

from vllm.platforms import current_platform


def unpack_experts(worker: Any) -> None:
    """Runs in vLLM's worker before it loads new weights: makes it pack those of experts for its CPU kernel.

    vLLM packs (and pads) them when it makes the kernel, and does not make it again when weights are loaded again: the
    kernel would take plain weights for packed ones. Without a kernel vLLM makes a new one, and packs. Kernels of GPUs
    need no packing, and CUDA graphs hold on to them.
    """
    if not current_platform.is_cpu():
        return
    for module in worker.model_runner.get_model().modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
