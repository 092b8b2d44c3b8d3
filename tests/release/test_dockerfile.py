"""release/Dockerfile installs what the Makefile and the locks ask for."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "release" / "Dockerfile").read_text()
MAKEFILE = (REPOSITORY / "Makefile").read_text()


def instructions(name: str) -> list[str]:
    """The arguments of each instruction of this name; a line that ends with a backslash goes on in the next."""
    lines = re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def apt_packages(text: str) -> set[str]:
    (names,) = re.findall(r"apt-get install -y -qq --no-install-recommends ([^;&>\n]+)", text)
    return set(names.split())


def test_a_device_has_the_python_of_its_lock():
    assert instructions("ARG") == ["DEVICE=cpu", "DEVICE"]
    pythons = re.findall(r"^LOCK_PYTHON_(\w+) := (\S+)$", MAKEFILE, re.MULTILINE)
    images = [f"python:{python}-slim-bookworm AS python-{device}" for device, python in pythons]
    assert instructions("FROM") == [*images, "python-${DEVICE}"]


def test_the_image_has_the_debian_packages_that_make_would_install():
    installed = apt_packages(instructions("RUN")[0])
    assert apt_packages(MAKEFILE) <= installed
    assert installed - apt_packages(MAKEFILE) == {"gcc", "git", "libc6-dev", "make"}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_make_takes_the_lock_of_the_device_in_the_build_and_in_a_container(device):
    command = shlex.split(instructions("RUN")[-1].replace("${DEVICE}", device))
    (variables,) = instructions("ENV")
    assert "DEVICE=${DEVICE}" in variables.split()
    for make, environment in (
        (command[command.index("make") :], {}),
        (["make", "install"], {"DEVICE": device}),
    ):
        done = subprocess.run(
            [*make, "--dry-run", "--always-make", f"VENV={REPOSITORY / 'no-such-folder'}"],
            cwd=REPOSITORY, env=os.environ | environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"pip install --quiet --no-deps -r requirements/{device}.lock" in done.stdout
