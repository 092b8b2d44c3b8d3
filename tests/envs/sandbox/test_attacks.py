"""All attacks of the table, as this user and, when that is root, as an ordinary one."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rllib_arpo
from tests.envs.sandbox.attacks import ATTACKS

REPOSITORY = Path(__file__).resolve().parents[3]
ORDINARY = 12345
CAMPAIGN = ["-m", "tests.envs.sandbox.campaign"]


def campaign(user: str) -> dict:
    """The outcomes of all attacks."""
    done = run_campaign(user)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@functools.cache
def run_campaign(user: str) -> subprocess.CompletedProcess:
    """Makes all attacks, once for each user, in a process of its own."""
    command = [sys.executable, *CAMPAIGN]
    packages = str(Path(rllib_arpo.__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY), packages)), "PYTHONDONTWRITEBYTECODE": "1"}
    if user == "ordinary":
        if os.getuid() != 0:
            pytest.skip("only root can become another user; the attacks were made as this one")
        folders = dict.fromkeys(map(str, (sys.base_prefix, sys.prefix, REPOSITORY, packages)))
        as_user = str(REPOSITORY / "tests/envs/sandbox/as_user.py")
        command = [sys.executable, as_user, str(ORDINARY), ",".join(folders), "--", *command]
        return run(command, env | {"HOME": "/tmp", "TMPDIR": "/tmp"})
    with tempfile.TemporaryDirectory() as folder:
        return run(command, env | {"TMPDIR": folder})


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("user", ["own", "ordinary"])
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_fails(user, name):
    assert campaign(user)["outcomes"][name] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("user", ["own", "ordinary"])
def test_attacks_leave_nothing_behind(user):
    result = campaign(user)
    assert result["user"] == (os.getuid() if user == "own" else ORDINARY)
    assert result["leftovers"] == []
