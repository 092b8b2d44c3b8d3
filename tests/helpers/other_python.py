"""Virtual environments with packages that this project's locks exclude; kept in the user's cache between runs."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("~/.cache/rllib_arpo/test_packages").expanduser()


def python_with(name: str, *requirements: str) -> str:
    """The Python of an environment in which pip has installed `requirements`."""
    folder = FOLDER / name
    mark, wanted = folder / "installed", " ".join(requirements)
    if not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", *requirements], check=True)
        mark.write_text(wanted)
    return str(folder / "bin" / "python")


def packages_with(name: str, *requirements: str) -> str:
    """The folder of such an environment's packages, for this Python."""
    (folder,) = Path(python_with(name, *requirements)).parents[1].glob("lib/python*/site-packages")
    return str(folder)


@contextmanager
def running(*command: str, port: int, **environment: str) -> Iterator[None]:
    """A server of that port, until the block ends.

    Raises:
        TimeoutError: it does not listen after two minutes.
    """
    silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, env={**os.environ, **environment}, **silent)
    try:
        deadline = time.monotonic() + 120
        while not _listens(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise TimeoutError(f"{' '.join(command)} does not listen.")
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
