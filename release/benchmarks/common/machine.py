"""Where a benchmark ran: processor, memory, versions, load."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from rllib_arpo.tracking.machine import commit, machine, versions

__all__ = ["command", "commit", "load", "machine", "versions"]


def command(package: str, arguments: Sequence[str] | None) -> str:
    """The command line that measures again, from the root of the repository.

    Args:
        package: below `release.benchmarks`.
        arguments: None: those of this process.
    """
    own = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", f"release.benchmarks.{package}", *own])


def load() -> float:
    """Processes that ran or waited for a core, mean of the last minute."""
    return round(os.getloadavg()[0], 2)
