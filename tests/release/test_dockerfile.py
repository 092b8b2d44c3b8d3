"""release/Dockerfile installs what the Makefile and the locks ask for."""

import re
from pathlib import Path

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
