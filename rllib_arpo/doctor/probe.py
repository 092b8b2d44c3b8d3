"""Reads the facts of this machine. Starts no engine and no Ray."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rllib_arpo.doctor.machine import Disk, Gpu, Machine, ModelFolder, Package, Tool
from rllib_arpo.doctor.packages import PACKAGES, PROJECT
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.web.render import check_browser

#: Where the metadata of rllib-arpo is not installed.
_REQUIRES_PYTHON = ">=3.11"
_SHARED_MEMORY = Path("/dev/shm")
#: A model's folder in Hugging Face's cache.
_HUB_PREFIX = "models--"


def probe() -> Machine:
    from huggingface_hub.constants import HF_HUB_CACHE
    from ray._common.utils import get_system_memory
    from ray._private.utils import estimate_available_memory, resolve_object_store_memory
    from ray.train.constants import DEFAULT_STORAGE_PATH

    project = _package(PROJECT)
    cache = Path(os.environ.get("RLLIB_ARPO_CACHE") or Path.home() / ".cache" / "rllib_arpo").expanduser()
    return Machine(
        python=platform.python_version(),
        project=project,
        requires_python=_requires_python(project),
        packages=tuple(package for name in PACKAGES if (package := _package(name)) is not None),
        torch_build=_torch_build(),
        gpus=tuple(_gpus()),
        num_nvidia_devices=sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").iterdir()),
        memory=get_system_memory(),
        shared_memory=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0,
        object_store=resolve_object_store_memory(estimate_available_memory()),
        bubblewrap=_bubblewrap(),
        chromium=_chromium(),
        has_libnuma=_loads("libnuma.so.1"),
        disks=(_disk("disk here", Path.cwd()), _disk("disk of results", Path(DEFAULT_STORAGE_PATH))),
        cache=_model_folder(cache, _cache_names),
        hub=_model_folder(Path(HF_HUB_CACHE).expanduser(), _hub_names),
    )


def _package(name: str) -> Package | None:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return Package(name, distribution.version, tuple(distribution.requires or ()))


def _requires_python(project: Package | None) -> str:
    stated = None if project is None else importlib.metadata.metadata(PROJECT).get("Requires-Python")
    return stated or _REQUIRES_PYTHON


def _torch_build() -> str:
    import torch

    if torch.version.cuda is not None:
        return f"CUDA {torch.version.cuda}"
    return "CPU" if torch.version.hip is None else f"ROCm {torch.version.hip}"


def _gpus() -> Iterator[Gpu]:
    import torch

    if not torch.cuda.is_available():
        # torch also counts the GPUs of a driver that is too old for its CUDA, and cannot use them.
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        yield Gpu(torch.cuda.get_device_name(index), free, total)


def _bubblewrap() -> Tool:
    try:
        bubblewrap.check_available()
    except bubblewrap.SandboxError as error:
        return Tool(problem=str(error))
    return Tool(path=bubblewrap.find_bwrap() or "")


def _chromium() -> Tool:
    try:
        return Tool(path=check_browser())
    except ValueError as error:
        return Tool(problem=str(error))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _disk(name: str, folder: Path) -> Disk:
    return Disk(name, str(folder), shutil.disk_usage(_existing(folder)).free)


def _model_folder(folder: Path, names: Callable[[list[str]], Iterable[str]]) -> ModelFolder:
    """Args: `names` gives the models of subfolders. A folder that cannot be read counts as one that is not writable."""
    try:
        inside = [path.name for path in folder.iterdir() if os.path.isdir(path)] if folder.is_dir() else []
    except PermissionError:
        return ModelFolder(str(folder), (), False)
    return ModelFolder(str(folder), tuple(sorted(names(inside))), os.access(_existing(folder), os.W_OK))


def _cache_names(inside: list[str]) -> Iterator[str]:
    return (name for name in inside if not name.startswith("."))


def _hub_names(inside: list[str]) -> Iterator[str]:
    """Ids of models: "models--Qwen--Qwen3-8B" is "Qwen/Qwen3-8B"."""
    for name in inside:
        if name.startswith(_HUB_PREFIX):
            yield name.removeprefix(_HUB_PREFIX).replace("--", "/")


def _existing(folder: Path) -> Path:
    """`folder`, or the nearest of those above it that exists and that this user may see."""
    # Unlike `Path.exists`, which raises PermissionError below a folder that this user may not enter.
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))
