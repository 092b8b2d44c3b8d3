"""The wheel holds every module under `rllib_arpo` and nothing beside it."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def test_the_wheel_installs_rllib_arpo_and_nothing_else():
    script = REPOSITORY / "release" / "wheel_check.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(
        "rllib_arpo.envs imports, and no other top-level package is installed."
    )


def test_the_check_finds_a_top_level_envs_package(tmp_path):
    sys.path.insert(0, str(REPOSITORY / "release"))
    try:
        import wheel_check
    finally:
        sys.path.pop(0)
    for package in ("rllib_arpo", "envs"):
        (tmp_path / package).mkdir()
    with pytest.raises(AssertionError, match=r"The wheel installs \['envs', 'rllib_arpo'\], not rllib_arpo alone\."):
        wheel_check.check_installation(tmp_path, tmp_path)
