"""Runs a command with a time limit, and leaves nothing of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
#: Seconds that a command's processes have to clean up after they were asked to end.
GRACE_S = 30.0


def run_within(command: Sequence[str], timeout_s: float, log: Path, environment: Mapping[str, str]) -> int | None:
    """Runs a command in the root of the repository; its output goes into `log`.

    Args:
        environment: all of it.

    Returns:
        the exit status; None: the command took longer than `timeout_s`.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    """Ends what the command has left; its processes are a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
