"""The facts about a machine that the checks judge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package; `requirements` are those of its metadata, like "torch==2.11.0"."""

    name: str
    version: str
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that torch sees; sizes in bytes."""

    name: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder, which need not exist yet, and the free bytes of its disk."""

    name: str
    path: str
    free: int


@dataclass(frozen=True, slots=True)
class Tool:
    """A program: its path, or the sentence that says why it does not work."""

    path: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder of models with the names in it; it need not exist yet."""

    path: str
    models: tuple[str, ...]
    writable: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """All facts; sizes in bytes.

    Attributes:
        python: its version.
        project: the metadata of rllib-arpo; None if it is not installed.
        requires_python: of rllib-arpo's metadata.
        packages: those of `PACKAGES` that are installed.
        torch_build: "CPU", or like "CUDA 12.8".
        num_nvidia_devices: device files of the driver, also of GPUs that torch does not see.
        memory: of the machine, or the limit of its container.
        shared_memory: free in /dev/shm.
        object_store: what Ray would take for its objects.
        cache: of models that this package makes.
        hub: Hugging Face's cache.
    """

    python: str
    project: Package | None
    requires_python: str
    packages: tuple[Package, ...]
    torch_build: str
    gpus: tuple[Gpu, ...]
    num_nvidia_devices: int
    memory: int
    shared_memory: int
    object_store: int
    bubblewrap: Tool
    chromium: Tool
    has_libnuma: bool
    disks: tuple[Disk, ...]
    cache: ModelFolder
    hub: ModelFolder

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == name), None)
