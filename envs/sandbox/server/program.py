"""The process that runs a call's code: it gives up its rights, limits itself, executes the code and exits."""

import os
import random
import resource
import signal
import sys
import tempfile
from pathlib import Path

from .execute import execute, new_variables, replay

#: The program writes this to the supervisor when it has repeated the earlier calls of the session.
REPLAYED = b"r"
MAX_OPEN_FILES = 64
#: The list is fixed, since a walk through all modules in every call would cost a millisecond of page faults.
_SERVER_MODULES = (__package__, *(f"{__package__}.{Path(file).stem}" for file in os.listdir(Path(__file__).parent)))


def run_program(request, output, ready, folder, cpu_limit_s, fence):
    """Runs the request's code in this (forked) process and leaves it; never returns.

    Args:
        output, ready: the pipes to the supervisor.
        folder: the call's private folder.
    """
    code = 1
    try:
        prepare(request, output, ready, folder, cpu_limit_s, fence)
        variables = new_variables()
        if replay(request["history"], variables):
            os.write(3, REPLAYED)
            os.close(3)
            code = execute(request["code"], variables)
            sys.stdout.flush()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(code)


def prepare(request, output, ready, folder, cpu_limit_s, fence):
    """Sets all limits before any of the call's code runs."""
    arrange_files(output, ready)
    os.chdir(folder)
    tempfile.tempdir = os.environ["HOME"] = os.environ["TMPDIR"] = folder
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_limits(request, cpu_limit_s, fence)
    fence.confine(folder)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    random.seed(0)  # every fork draws a new seed
    forget_server()


def arrange_files(output, ready):
    """Leaves only these files open: 0: /dev/null, 1 and 2: the output, 3: the pipe that reports the replay."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(ready, 3)
    os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def set_limits(request, cpu_limit_s, fence):
    limits = {
        resource.RLIMIT_AS: fence.memory_in_use + (request["memory_mb"] << 20),
        resource.RLIMIT_CPU: cpu_limit_s,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        **fence.limits(request["disk_mb"]),
    }
    for what, value in limits.items():
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def forget_server():
    """Removes the server's modules, so that the code cannot find them by name."""
    for name in _SERVER_MODULES:
        sys.modules.pop(name, None)
