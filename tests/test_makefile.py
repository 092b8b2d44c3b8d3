"""`make install` takes the lock of the device, into a folder that only this device's packages fill."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
#: In place of Python: makes a "virtual environment" whose pip writes down what it is told to install.
PYTHON = """#!/bin/sh
test "$1" = -m || exit 0
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >> pip.log\\n' > "$3/bin/pip"
printf '#!/bin/sh\\n' > "$3/bin/python"
chmod +x "$3/bin/pip" "$3/bin/python"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the Makefile, where nothing outside of the folder is installed."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "bin").mkdir()
    for file in ("requirements/cpu.lock", "requirements/gpu.lock", "pyproject.toml"):
        (tmp_path / file).touch()
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    for name in ("bwrap", "chromium"):
        add_program(tmp_path, name, "#!/bin/sh\n")
    for name in ("nvidia-smi", "apt-get"):
        add_program(tmp_path, name, "#!/bin/sh\nexit 1\n")
    add_program(tmp_path, "python3", PYTHON)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("DEVICE", "PYTHON", "MAKEFLAGS", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def add_program(project: Path, name: str, text: str) -> None:
    (project / "bin" / name).write_text(text)
    (project / "bin" / name).chmod(0o755)


def make(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = ["make", "PYTHON=python3", *arguments, "install"]
    env = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=60)


def installed_locks(project: Path) -> list[str]:
    """The locks that pip has installed since the last call."""
    log = project / "pip.log"
    words = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return [following for word, following in itertools.pairwise(words) if word == "-r"]


def test_the_lock_is_the_one_for_the_machine(project):
    make(project)
    assert installed_locks(project) == ["requirements/cpu.lock"]
    add_program(project, "nvidia-smi", "#!/bin/sh\n")
    for installed in (["requirements/gpu.lock"], []):
        make(project)
        assert installed_locks(project) == installed
    make(project, "DEVICE=cpu")
    assert installed_locks(project) == ["requirements/cpu.lock"]


def test_another_device_begins_with_an_empty_folder(project):
    for device, previous in (("gpu", None), ("cpu", "gpu"), ("gpu", "cpu")):
        assert make(project, f"DEVICE={device}").returncode == 0
        assert not (project / ".venv" / f"of-{previous}").exists()
        (project / ".venv" / f"of-{device}").touch()
    assert installed_locks(project) == [f"requirements/{device}.lock" for device in ("gpu", "cpu", "gpu")]


@pytest.mark.parametrize(("device", "python"), [("cpu", "3.11"), ("gpu", "3.12")])
def test_a_lock_that_does_not_install_says_for_which_python_it_was_made(project, device, python):
    add_program(project, "python3", PYTHON.replace('echo "$@" >> pip.log', "exit 1"))
    done = make(project, f"DEVICE={device}")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        f"A package of requirements/{device}.lock did not install. The lock was made for Python {python} on Linux "
        f"x86-64; where another Python has no wheels for it, say make clean, then make PYTHON=python{python}."
    )
