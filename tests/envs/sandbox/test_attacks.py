"""All attacks of the table fail, as this user and, when that is root, as an ordinary one.

Harmless ones succeed without a fence, so the fence is what stops them.
"""

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import rllib_arpo
from rllib_arpo.envs.sandbox.bubblewrap import find_bwrap
from rllib_arpo.envs.sandbox.fork_server import shared_server
from tests.envs.sandbox.attacks import ATTACKS, BREACH
from tests.envs.sandbox.campaign import SETUP, Baits, attempt

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = Path(rllib_arpo.__file__).resolve().parents[1]
ORDINARY = 12345
BECOME = "import os, sys; os.setgroups([]); os.setresgid(*[{0}] * 3); os.setresuid(*[{0}] * 3); os.execv({1!r}, {2!r})"


def as_ordinary_user(command: list[str], paths: set[Path]) -> list[str]:
    """The command of an ordinary user, who may pass the folders above `paths`, and sees nothing else in these folders.

    An interpreter, a virtual environment or a checkout often lies below a folder that only root may pass (/root).
    """
    options = []
    for path in paths:
        closed = [folder for folder in path.parents if not folder.stat().st_mode & stat.S_IXOTH]
        if closed and str(closed[-1]) not in options:
            options += ["--perms", "755", "--tmpfs", str(closed[-1])]
    for path in paths:
        folders = [option for folder in reversed(path.parents) for option in ("--dir", str(folder))]
        options += [*folders[2:], "--bind", str(path), str(path)]
    fence = [find_bwrap(), "--dev-bind", "/", "/", *options, "--cap-add", "ALL", "--"]
    return [*fence, sys.executable, "-c", BECOME.format(ORDINARY, command[0], command)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("user", [os.getuid(), ORDINARY])
def test_every_attack_fails_and_leaves_nothing_behind(user, tmp_path):
    command = [sys.executable, "-m", "tests.envs.sandbox.campaign"]
    env = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"}
    if user == os.getuid():
        env["TMPDIR"] = str(tmp_path)
    elif os.getuid() == 0:
        env |= {"HOME": "/tmp", "TMPDIR": "/tmp"}
        command = as_ordinary_user(command, {*map(Path, (sys.base_prefix, sys.prefix)), REPOSITORY, PACKAGES})
    else:
        pytest.skip("only root can become another user; the attacks were made as this one")
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"user": user, "outcomes": {name: [] for name in ATTACKS}, "leftovers": []}


@pytest.fixture(scope="module")
def baits():
    with Baits() as baits:
        yield baits


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.control])
def test_a_harmless_attack_succeeds_without_a_fence(baits, name):
    found = asyncio.run(attempt(ATTACKS[name], shared_server(SETUP), baits))
    assert any(BREACH in one for one in found)


def test_a_touched_bait_is_noticed(baits):
    assert baits.damage() == []
    server = shared_server(SETUP)
    asyncio.run(server.run(baits.fill_in("import socket; socket.create_connection(('127.0.0.1', @port@))"), 20.0))
    asyncio.run(server.run(baits.fill_in("open('@folder@/left', 'w')"), 20.0))
    assert baits.damage() == ["files", "tcp"]
    asyncio.run(server.run(baits.fill_in("import os; os.remove('@folder@/left')"), 20.0))
    assert baits.damage() == []
