"""The wheel holds every module under `rllib_arpo`, its mark that it has types, and nothing beside it."""

import subprocess
import sys
from pathlib import Path

import pytest

from release import wheel_check

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_wheel_installs_rllib_arpo_and_nothing_else():
    script = REPOSITORY / "release" / "wheel_check.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(
        "rllib_arpo.envs imports, and no other top-level package is installed."
    )


def test_the_check_finds_a_top_level_envs_package(tmp_path):
    for package in ("rllib_arpo", "envs"):
        (tmp_path / package).mkdir()
    with pytest.raises(AssertionError, match=r"The wheel installs \['envs', 'rllib_arpo'\], not rllib_arpo alone\."):
        wheel_check.check_installation(tmp_path, tmp_path)


def test_the_check_misses_the_mark_of_types(tmp_path):
    """Type checkers read annotations of an installed package only if it has the file py.typed (PEP 561)."""
    for folder in ("sources/rllib_arpo", "sources/envs", "site/rllib_arpo"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(AssertionError, match=r"The wheel lacks rllib_arpo/py\.typed\."):
        wheel_check.check_installation(tmp_path / "site", tmp_path / "sources")
