"""What the engines of the check have in common."""

from __future__ import annotations

from typing import Any

import torch

from release.gpu_parts.sizes import Sizes

#: Of the GPU's memory, at most, so that two engines, or an engine and a learner, have room on one.
SHARE = 0.4
DTYPE = "bfloat16"


def engine_kwargs(sizes: Sizes) -> dict[str, Any]:
    """vLLM's arguments; the length of the KV cache is fixed, so that both sides of a comparison have the same."""
    share = {"gpu_memory_utilization": SHARE} if torch.cuda.is_available() else {}
    return {"kv_cache_memory_bytes": sizes.kv_cache_bytes, **share}
