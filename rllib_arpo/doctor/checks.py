"""Checks of the machine: GPUs, shared memory, programs, disks and folders of models."""

from __future__ import annotations

from collections import Counter

from rllib_arpo.doctor.machine import Disk, Gpu, Machine, ModelFolder, Tool
from rllib_arpo.doctor.packages import is_cpu_build, package_checks
from rllib_arpo.doctor.report import Check, Mark, size
from rllib_arpo.engine.vllm_versions import VLLM_BUILDS

#: Free bytes below which a disk is nearly full: an installation takes 3.5 GB, a checkpoint of SmolLM2-135M 1.6 GB.
LITTLE_DISK = 5 * 10**9
#: Names of models that are shown.
_SHOWN_AT_MOST = 3


def machine_checks(machine: Machine) -> list[Check]:
    """All checks, in the order of the report."""
    return [
        *package_checks(machine),
        _gpus(machine),
        _shared_memory(machine),
        _tool("bubblewrap", machine.bubblewrap, "makes user namespaces"),
        _tool("Chromium", machine.chromium, "not started"),
        _libnuma(machine),
        *map(_disk, machine.disks),
        _models("models", machine.cache),
        _models("model hub", machine.hub),
    ]


def _gpus(machine: Machine) -> Check:
    if machine.gpus:
        counts = Counter(map(_gpu, machine.gpus))
        texts = [text if number == 1 else f"{number} x {text}" for text, number in counts.items()]
        return Check(Mark.OK, "GPUs", ", ".join(texts))
    if not machine.num_nvidia_devices:
        return Check(Mark.OK, "GPUs", "none: training runs on the CPU")
    found = f"torch sees none of the {machine.num_nvidia_devices} NVIDIA devices"
    if machine.torch_build == "CPU":
        return Check(Mark.WARNING, "GPUs", found, "Install the CUDA builds: `pip install rllib-arpo[gpu]`.")
    advice = f"Look with nvidia-smi whether the driver is new enough for {machine.torch_build}."
    return Check(Mark.WARNING, "GPUs", found, advice)


def _gpu(gpu: Gpu) -> str:
    return f"{gpu.name}, {size(gpu.free)} of {size(gpu.total)} free"


def _shared_memory(machine: Machine) -> Check:
    found = f"{size(machine.shared_memory)} free in /dev/shm, Ray takes {size(machine.object_store)} for its objects"
    if machine.shared_memory >= machine.object_store:
        return Check(Mark.OK, "shared memory", found)
    # A tenth more than the objects take, as Ray advises.
    wanted = 1.1 * machine.object_store / 2**30
    advice = f"Ray will put its objects on the disk, which is slow: start the container with --shm-size={wanted:.1f}g."
    return Check(Mark.WARNING, "shared memory", found, advice)


def _tool(name: str, tool: Tool, checked: str) -> Check:
    if tool.problem:
        return Check(Mark.WARNING, name, tool.problem)
    return Check(Mark.OK, name, f"{tool.path} ({checked})")


def _libnuma(machine: Machine) -> Check:
    if machine.has_libnuma:
        return Check(Mark.OK, "libnuma", "found")
    found = "not found, and vLLM's CPU build needs it"
    needed = any(is_cpu_build(package) for package in machine.packages if package.name in VLLM_BUILDS)
    if needed:
        return Check(Mark.MISSING, "libnuma", found, "Install Debian's libnuma1.")
    return Check(Mark.OK, "libnuma", "not found; only vLLM's CPU build needs it")


def _disk(disk: Disk) -> Check:
    found = f"{size(disk.free)} free in {disk.path}"
    if disk.free >= LITTLE_DISK:
        return Check(Mark.OK, disk.name, found)
    return Check(Mark.WARNING, disk.name, found, "Make room: checkpoints of large models take tens of GB.")


def _models(name: str, folder: ModelFolder) -> Check:
    shown = ", ".join(folder.models[:_SHOWN_AT_MOST]) or "no models yet"
    more = len(folder.models) - _SHOWN_AT_MOST
    found = f"{folder.path}: {shown}" + (f" and {more} more" if more > 0 else "")
    if folder.writable:
        return Check(Mark.OK, name, found)
    variable = "RLLIB_ARPO_CACHE" if name == "models" else "HF_HOME"
    advice = f"Nothing can be written there: set {variable} to another folder."
    return Check(Mark.WARNING, name, found, advice)
