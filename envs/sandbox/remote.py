"""The common part of the remote sandboxes: the program that makes a remote Python show results like the local one."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def program(code: str, history: Sequence[str]) -> str:
    """A whole program that runs `history` silently, then `code`; its exit code states the outcome."""
    tail = _TAIL.format(request=json.dumps([list(history), code]), replay_failed=_REPLAY_FAILED)
    return _EXECUTE.read_text(encoding="utf-8") + tail


def reply(exit_code: int, output: str) -> WorkerReply:
    """The reply for a program that ended by itself."""
    if len(output) > MAX_OUTPUT_BYTES:
        return WorkerReply(CallStatus.OUTPUT, output[:MAX_OUTPUT_BYTES])
    if exit_code == _REPLAY_FAILED:
        return WorkerReply(CallStatus.REPLAY, output)
    if exit_code < 0:
        return WorkerReply(CallStatus.SIGNAL, output, -exit_code)
    return WorkerReply(CallStatus.ERROR if exit_code else CallStatus.OK, output)
