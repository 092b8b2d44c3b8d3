"""Ray workers that are forked from a process which has imported torch, transformers and pandas already.

Ray starts a worker as two new interpreters, whose imports take 4 seconds of a core, and the tests start more than a
hundred workers. After `start()` Ray runs this file where it would run its own `setup_worker.py`: the file sends the
worker's arguments, environment and standard streams to one warm process, which forks. The fork runs Ray's own
`default_worker.py`, as every worker does. Workers with a runtime environment of their own, and all workers if the warm
process is gone, start as they always do.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

#: Variable with the name of the warm process's socket, in Linux's abstract namespace.
SOCKET = "WARM_WORKERS_SOCKET"
#: What a worker of RLlib imports, but for Ray: its core reads the worker's environment when it is imported.
MODULES = ("torch", "pandas", "pyarrow.dataset", "transformers", "gymnasium", "tree", "pydantic", "jsonschema", "rich")
#: Arguments that Ray's setup_worker.py does not pass on.
OF_SETUP = ("--language=", "--serialized-runtime-env-context=")


@functools.cache
def start() -> None:
    """Workers of each Ray that this process starts from now on are forked; the warm process ends with this one."""
    from ray._private import ray_constants

    os.environ[SOCKET] = f"warm-workers-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{os.environ[SOCKET]}")
        listener.listen(128)
        # Its standard input ends when this process does.
        subprocess.Popen(
            [sys.executable, __file__, "--serve", str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    ray_constants.SETUP_WORKER_FILENAME = __file__


def serve(descriptor: int) -> tuple[list[str], dict[str, str], str, int] | None:
    """Forks a process for each request; returns in it, with what it is to be, or in the end with None."""
    for module in MODULES:
        importlib.import_module(module)
    # jemalloc and OpenBLAS have threads of their own, which they care for at a fork.
    if threading.active_count() > 1:
        sys.exit(f"The warm process cannot be forked: an import of {MODULES} has started {threading.enumerate()}.")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the workers.
    with socket.socket(fileno=descriptor) as listener:
        while listener in select.select([sys.stdin, listener], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                request = json.loads(connection.makefile().read())
                if os.fork() == 0:
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                    os.closerange(3, max(*streams, descriptor, connection.fileno()) + 1)
                    listener.detach()
                    connection.detach()
                    return request
                for stream in streams:
                    os.close(stream)
    return None


def work(arguments: list[str], environment: dict[str, str], folder: str, niceness: int) -> None:
    """Becomes the worker that Ray wants."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [argument for argument in arguments if not argument.startswith(OF_SETUP)]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


def request(arguments: list[str]) -> None:
    """Asks the warm process for a worker, or starts it as Ray does."""
    own_environment = any(argument.startswith(OF_SETUP[1]) for argument in arguments)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            if own_environment:
                raise ConnectionRefusedError
            connection.connect(f"\0{os.environ[SOCKET]}")
            socket.send_fds(connection, [b"."], [0, 1, 2])
            wanted = [arguments, dict(os.environ), os.getcwd(), os.getpriority(os.PRIO_PROCESS, 0)]
            connection.sendall(json.dumps(wanted).encode())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # Closed when the worker is there.
        except ConnectionError:
            usual = Path(arguments[0]).with_name("setup_worker.py")
            os.execv(sys.executable, [sys.executable, str(usual), *arguments])


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        if (wanted := serve(int(sys.argv[2]))) is not None:
            work(*wanted)
    else:
        request(sys.argv[1:])
