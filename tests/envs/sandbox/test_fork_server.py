"""The server's life: many calls, dead processes, the end of its owner."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.sandbox import fork_server
from rllib_arpo.envs.sandbox.fork_server import ForkServer, WorkerReply
from tests.envs.sandbox.campaign import settled
from tests.helpers.processes import descendants, eventually

BOTH = pytest.mark.parametrize("fenced", [True, False])


@pytest.fixture
def make_server():
    servers = []

    def make(fenced: bool, setup: str = "") -> ForkServer:
        servers.append(ForkServer(setup, fenced))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


FORKING = """
import asyncio, os, sys
from rllib_arpo.envs.sandbox.fork_server import shared_server
server = shared_server()
server.start()
if os.fork() == 0:
    sys.exit()
os.wait()
print(server.alive, asyncio.run(server.run("7 * 12", 60.0)).output, end="")
"""


@pytest.mark.slow
def test_a_forked_process_leaves_its_parents_server_alone():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True 84\n"


@BOTH
@pytest.mark.parametrize("setup", ["import no_such_module", "import os; os._exit(3)"])
def test_a_server_that_cannot_start_says_so(make_server, fenced, setup):
    with pytest.raises(BrokenToolError, match="did not start"):
        asyncio.run(make_server(fenced, setup).run("1", 1.0))


@pytest.mark.parametrize("broken", ["os.pidfd_open", "subprocess.Popen"])
def test_a_server_that_cannot_be_started_again_is_a_broken_tool(make_server, monkeypatch, broken):
    """Processes are short on the machine when the server has been killed."""
    server = make_server(True)
    server.start()
    server.close()
    opened = len(os.listdir("/proc/self/fd"))

    def refuse(*args, **kwargs):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(broken, refuse)
        with pytest.raises(BrokenToolError, match=r"did not start: .*Resource temporarily unavailable"):
            asyncio.run(server.run("1", 60.0))
    assert len(os.listdir("/proc/self/fd")) == opened
    assert asyncio.run(server.run("print(1)", 60.0)) == WorkerReply("ok", "1\n")


@BOTH
async def test_waiting_for_a_place_is_not_on_the_time_limit(make_server, fenced, monkeypatch):
    """16 calls of 0.9 s on 8 places: the last ones begin after 0.9 s and must not be stopped at 1.7 s."""
    monkeypatch.setattr(fork_server, "PLACES", 8)
    server = make_server(fenced)
    begin = time.monotonic()
    replies = await asyncio.gather(*(server.run("import time; time.sleep(0.9)", 1.7) for _ in range(16)))
    assert time.monotonic() - begin > 1.7
    # On a very busy machine single calls may really take 1.7 s.
    assert sum(reply.status == "ok" for reply in replies) >= 10


@BOTH
def test_threads_with_loops_of_their_own_share_a_server(make_server, fenced):
    server = make_server(fenced)
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda i: asyncio.run(server.run(f"print({i})", 60.0)).output, range(8)))
    assert replies == [f"{i}\n" for i in range(8)]


async def test_calls_outlive_a_server_that_is_killed_under_them(make_server):
    """Process 1 inside the fence is killed with six calls running; their second attempts find the next server."""
    server = make_server(True)
    await server.run("0", 60.0)
    running = [asyncio.create_task(server.run(f"import time; time.sleep(1); print({i})", 60.0)) for i in range(6)]
    await asyncio.sleep(0.5)
    signal.pidfd_send_signal(server._running._init[0], signal.SIGKILL)
    found = await asyncio.gather(*running)
    assert [reply.output for reply in found] == [f"{i}\n" for i in range(6)]


async def test_an_abandoned_call_ends(make_server):
    server = make_server(True)
    server.start()
    idle = len(descendants(zombies=True))
    task = asyncio.create_task(server.run("import time; time.sleep(1000)", 1000.0))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(settled(idle)) <= idle


@BOTH
def test_many_calls_leave_no_files_and_no_processes_open(make_server, fenced):
    server = make_server(fenced)

    async def some(number):
        for _ in range(number):
            assert (await server.run("1", 60.0)).status == "ok"

    asyncio.run(some(5))
    files, processes = len(os.listdir("/proc/self/fd")), len(descendants(zombies=True))
    asyncio.run(some(50))
    assert len(os.listdir("/proc/self/fd")) == files
    assert len(settled(processes)) <= processes


@BOTH
def test_an_owner_with_many_open_files_passes_none_of_them_on(make_server, fenced):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (6000, hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(4300)]
    try:
        code = """
import os
def is_open(fd):
    try: return os.fstat(fd)
    except OSError: return False
print([fd for fd in range(6000) if is_open(fd)])
"""
        assert asyncio.run(make_server(fenced).run(code, 60.0)) == WorkerReply("ok", "[0, 1, 2]\n")
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


OWNER = """
import asyncio, sys, time
from rllib_arpo.envs.sandbox.fork_server import ForkServer
server = ForkServer("", fenced={fenced})
async def calls():
    running = asyncio.create_task(server.run("import time; time.sleep(1000)", 1000.0))
    print((await server.run("print('called')", 60.0)).output, end="", flush=True)
    await running
asyncio.run(calls())
"""


@pytest.mark.slow
@BOTH
def test_the_server_ends_with_its_owner_however_that_dies(fenced):
    # A call that runs keeps nothing alive, and the owner has no time to clean up.
    owner = subprocess.Popen([sys.executable, "-c", OWNER.format(fenced=fenced)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "called\n"

    def family() -> set[int]:
        return {owner.pid, *(process.pid for process in psutil.Process(owner.pid).children(recursive=True))}

    assert eventually(lambda: len(family()) >= 4)  # The second call may have ended before the first one is forked.
    alive = family()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not [pid for pid in alive if Path(f"/proc/{pid}").exists()])


def test_closing_ends_a_call_and_all_processes(make_server):
    server = make_server(True)
    server.start()
    before = len(descendants(zombies=True))
    server.close()
    assert eventually(lambda: len(descendants(zombies=True)) < before - 2)
    server.close()
    assert asyncio.run(server.run("print(1)", 60.0)) == WorkerReply("ok", "1\n")
