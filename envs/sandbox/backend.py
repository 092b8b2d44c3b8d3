"""The interface of the back-ends that run programs, and the part that the remote ones share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rllib_arpo.envs.sandbox.fork_server import MAX_OUTPUT_BYTES, CallStatus, WorkerReply

#: Exit codes: of a program that failed, and of a session that could not be repeated.
_REPLAY_FAILED = 113
_EXECUTE = Path(__file__).with_name("server") / "execute.py"
_TAIL = """
import json
history, code = json.loads({request!r})
variables = new_variables()
exit_code = execute(code, variables) if replay(history, variables) else {replay_failed}
sys.stdout.flush()
os._exit(exit_code)
"""


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


def remote_program(code: str, history: Sequence[str]) -> str:
    """A whole program that runs `history` silently, then `code`; its exit code states the outcome."""
    tail = _TAIL.format(request=json.dumps([list(history), code]), replay_failed=_REPLAY_FAILED)
    return _EXECUTE.read_text(encoding="utf-8") + tail


def remote_reply(exit_code: int, output: str) -> WorkerReply:
    """The reply for a program that ended by itself."""
    if len(output) > MAX_OUTPUT_BYTES:
        return WorkerReply(CallStatus.OUTPUT, output[:MAX_OUTPUT_BYTES])
    if exit_code == _REPLAY_FAILED:
        return WorkerReply(CallStatus.REPLAY, output)
    if exit_code < 0:
        return WorkerReply(CallStatus.SIGNAL, output, -exit_code)
    return WorkerReply(CallStatus.ERROR if exit_code else CallStatus.OK, output)
