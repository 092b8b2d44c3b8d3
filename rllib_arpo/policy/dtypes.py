"""The number format in which this machine computes models fast."""

from __future__ import annotations

import torch


def fast_dtype() -> str:
    """ "bfloat16" if this machine computes it in hardware (CUDA, or a CPU with bf16 instructions), or "float32".

    A CPU without such instructions emulates bf16, at a small fraction of the speed of fp32.
    """
    if torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "bfloat16"
    return "float32"
