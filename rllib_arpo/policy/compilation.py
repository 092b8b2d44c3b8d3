"""Finds out how this machine computes fast: in which number format, and whether `torch.compile` works."""

import logging
import os
import shutil
import sysconfig
from pathlib import Path

import torch


def fast_dtype() -> str:
    """ "bfloat16" if this machine computes it in hardware (CUDA, or a CPU with bf16 instructions), or "float32".

    A CPU without such instructions emulates bf16, at a small fraction of the speed of fp32.
    """
    if torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "bfloat16"
    return "float32"


#: The values of `learner_compile`; "layers" compiles the decoder layers and the LM head.
LEARNER_COMPILE = AUTO, LAYERS, NONE = "auto", "layers", "none"
#: Device type -> the variable that names its compiler, and the compilers that are searched for without it: inductor
#: compiles C++ for the CPU; for CUDA Triton compiles the C that starts its kernels.
_COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang"))}

logger = logging.getLogger("rllib_arpo")


def compiles(choice: str, device_type: str) -> bool:
    """Whether the learner compiles the model; "auto": on CUDA, if the machine can compile.

    Raises:
        ValueError: the choice is "layers", but the machine cannot compile.
    """
    if choice == NONE or (choice == AUTO and device_type != "cuda"):
        return False
    missing = missing_for_compilation(device_type)
    if missing is None:
        return True
    if choice == LAYERS:
        raise ValueError(f"learner_compile={choice!r} needs {missing}: install it, or set 'none'.")
    logger.warning("The learner compiles nothing, which makes updates slower: learner_compile needs %s.", missing)
    return False


def missing_for_compilation(device_type: str) -> str | None:
    """Names what torch.compile lacks on this machine; None if nothing is missing."""
    variable, names = _COMPILERS[device_type]
    given = os.environ.get(variable)
    if not any(shutil.which(name) for name in ([given] if given else names)):
        return f"a compiler ({' or '.join(names)}; {variable} may name another)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python (Debian: python3-dev)"
    if device_type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "Triton"
    return None
