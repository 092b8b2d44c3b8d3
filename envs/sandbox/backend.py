"""The interface of the back-ends that run programs, and the data that they need for a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from rllib_arpo.envs.sandbox.fork_server import WorkerReply


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call: wall seconds, and MiB of memory beyond the interpreter's and of files."""

    time_s: float
    memory_mb: int
    disk_mb: int


class Backend(ABC):
    """Runs programs; a dataclass whose fields are its configuration. Cheap to make: its resources are shared."""

    def check(self) -> None:
        """Raises a ValueError, in one sentence, if it cannot work on this machine or with its configuration."""
        return None

    def prepare(self) -> None:
        """Does the slow work of the first call in advance; blocks."""
        return None

    @abstractmethod
    async def run(self, code: str, history: Sequence[str], limits: Limits) -> WorkerReply:
        """Runs `history` without showing its output, then `code`, in a fresh interpreter.

        Raises:
            TransientToolError: a repetition may help.
            ToolError: the back-end refuses the call.
            BrokenToolError: the back-end cannot be used any more.
        """
