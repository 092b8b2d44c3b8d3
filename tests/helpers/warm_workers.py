"""Ray workers that are forked from processes which have imported what they need already.

Ray starts a worker as two new interpreters, whose imports take 4 seconds of a core, and the tests start more than a
hundred workers; an engine's imports take 6 more. After `start()` Ray runs this file where it would run its own
`setup_worker.py`: the file sends the worker's arguments, environment and standard streams to a warm process, which has
imported torch, vLLM and the like. For each Ray and job that process forks another one, which imports Ray and RLlib and
forks the workers. They run Ray's own `default_worker.py`, as every worker does. Workers with a runtime environment of
their own, and all workers if the warm process is gone, start as they always do. Forked workers have one seed of hashes,
so that sets have the same order in all of them.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import random
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Variable with the name of the warm process's socket, in Linux's abstract namespace.
SOCKET = "WARM_WORKERS_SOCKET"
#: What a worker of RLlib imports beside Ray.
MODULES = ("torch", "pandas", "pyarrow.dataset", "transformers", "gymnasium", "tree", "pydantic", "jsonschema", "rich")
#: What an engine imports. Some of it imports Ray if it can, which a warm process must not have yet.
OF_ENGINE = ("vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama")
OF_RAY = (
    "ray._private.workers.default_worker", "rllib_arpo.rollout.env_runner", "rllib_arpo.learner.arpo_torch_learner",
)  # fmt: skip
#: Arguments that Ray's setup_worker.py does not pass on.
OF_SETUP = ("--language=", "--serialized-runtime-env-context=")
MAX_BYTES = 1 << 20
RECEIVED = b"1"
#: Variables that imports have set; a worker's own come before them.
SET_BY_IMPORTS: dict[str, str] = {}
#: Seconds after which a process that forks workers looks whether its Ray is still there.
LOOK_S = 5.0
#: As many random ids as a worker's main thread may draw, and as many threads as may draw some.
NUM_IDS, NUM_THREADS = 10_000, 256


@functools.cache
def start() -> subprocess.Popen:
    """Workers of each Ray that this process starts from now on are forked; the warm process ends with this one."""
    os.environ[SOCKET] = f"warm-workers-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{os.environ[SOCKET]}")
        listener.listen(128)
        # Its standard input ends when this process does.
        process = subprocess.Popen(
            # -P: the modules of this folder bear the names of others (`datasets`).
            [sys.executable, "-P", __file__, "--serve", str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            # OpenMP has no threads then, which a fork would lose.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    use()
    return process


def use() -> None:
    """Workers of each Ray that this process starts from now on are forked by the warm process that `SOCKET` names."""
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = __file__


@dataclass(frozen=True, slots=True)
class Worker:
    """What Ray wants; `streams` are open files for standard input, output and error."""

    arguments: Sequence[str]
    environment: dict[str, str]
    folder: str
    niceness: int
    streams: Sequence[int]

    @classmethod
    def receive(cls, connection: socket.socket) -> Worker | None:
        """None: the other side has ended."""
        message, streams, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
        return cls(**json.loads(message), streams=streams) if message else None

    def send(self, connection: socket.socket) -> None:
        told = {"arguments": self.arguments, "environment": self.environment, "folder": self.folder}
        socket.send_fds(connection, [json.dumps({**told, "niceness": self.niceness}).encode()], self.streams)

    def close(self) -> None:
        for stream in self.streams:
            os.close(stream)

    def run(self) -> None:
        """Becomes this worker."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.setpriority(os.PRIO_PROCESS, 0, self.niceness)
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
        os.closerange(3, max(self.streams) + 1)
        self.settle()
        sys.argv = [argument for argument in self.arguments if not argument.startswith(OF_SETUP)]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")

    def settle(self) -> None:
        """Takes the worker's environment and folder."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(SET_BY_IMPORTS | self.environment)

    @property
    def ray_and_job(self) -> tuple[str, str]:
        """What Ray's core reads from the environment when it is imported: the raylet's process id and the job."""
        return self.environment["RAY_RAYLET_PID"], self.environment["RAY_JOB_ID"]


def serve(listener: socket.socket) -> Worker | None:
    """Passes each worker on to a process with its Ray and job; returns the worker in the fork that is to become it."""
    for module in MODULES:
        importlib.import_module(module)
    import_engine()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the forks.
    forking: dict[tuple[str, str], socket.socket] = {}
    while listener in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            worker = Worker.receive(connection)
            if worker is None:
                continue
            if worker.ray_and_job not in forking:
                forking[worker.ray_and_job], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                if fork() == 0:
                    for other in (listener, connection, *forking.values()):
                        other.close()
                    return fork_workers(theirs, worker)
                theirs.close()
            try:
                worker.send(forking[worker.ray_and_job])
                connection.send(RECEIVED)
            except BrokenPipeError:  # The process that should fork it has ended.
                forking.pop(worker.ray_and_job).close()
            worker.close()
    return None


def import_engine() -> None:
    """Imports what an engine imports, as if there were no Ray."""
    sys.modules["ray"] = None  # type: ignore[assignment]
    before = dict(os.environ)
    try:
        for module in OF_ENGINE:
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
    finally:
        del sys.modules["ray"]
    SET_BY_IMPORTS.update({name: value for name, value in os.environ.items() if before.get(name) != value})


def fork_workers(requests: socket.socket, first: Worker) -> Worker | None:
    """Forks the workers of one Ray and job, as long as that Ray lives; returns the worker in its fork."""
    import numpy

    first.close()
    first.settle()
    for module in OF_RAY:
        importlib.import_module(module)
    while Path("/proc", first.ray_and_job[0]).exists():
        if not select.select([requests], [], [], LOOK_S)[0]:
            continue
        worker = Worker.receive(requests)
        if worker is None:
            break
        advance_random_ids()
        if fork() == 0:
            requests.close()
            random.seed()
            numpy.random.seed()
            return worker
        worker.close()
    return None


def advance_random_ids() -> None:
    """Draws the ids that the last fork has drawn, or the next one would draw the same.

    Ray's core has a generator in each thread, seeded from a pool of eight, to which new threads come in turn. RLlib's
    import draws the first ids. Two workers that begin at once with the same id end each other ("Seal() called on an
    object without a reference to it"), and the driver waits for them for ever.
    """
    from ray._raylet import FunctionID

    for _ in range(NUM_IDS):
        FunctionID.from_random()
    for _ in range(NUM_THREADS):
        thread = threading.Thread(target=FunctionID.from_random)
        thread.start()
        thread.join()


def fork() -> int:
    """jemalloc and OpenBLAS have threads of their own, which they care for; others would be lost."""
    if threading.active_count() > 1:
        sys.exit(f"A warm process cannot be forked: an import has started {threading.enumerate()}.")
    return os.fork()


def request(arguments: list[str]) -> None:
    """Asks the warm process for a worker, or starts it as Ray does."""
    priority: Any = os.getpriority(os.PRIO_PROCESS, 0)
    worker = Worker(arguments, dict(os.environ), os.getcwd(), priority, (0, 1, 2))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            if any(argument.startswith(OF_SETUP[1]) for argument in arguments):
                raise ConnectionRefusedError
            connection.connect(f"\0{os.environ[SOCKET]}")
            worker.send(connection)
            if connection.recv(1) != RECEIVED:
                raise ConnectionAbortedError
        except OSError:
            usual = Path(arguments[0]).with_name("setup_worker.py")
            os.execv(sys.executable, [sys.executable, str(usual), *arguments])


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        with socket.socket(fileno=int(sys.argv[2])) as listener:
            wanted = serve(listener)
        if wanted is not None:
            wanted.run()
    else:
        request(sys.argv[1:])
