"""Sandboxes of E2B (https://e2b.dev), by its SDK; the key is the environment variable E2B_API_KEY."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllib_arpo.envs.errors import ToolError, TransientToolError
from rllib_arpo.envs.sandbox.backend import Backend, Limits, remote_program, remote_reply
from rllib_arpo.envs.sandbox.fork_server import MAX_OUTPUT_BYTES, CallStatus, WorkerReply

_KEY = "E2B_API_KEY"
_GRACE_S = 30.0
#: Runs in the sandbox's own kernel. It captures the program's output, which so cannot pretend to be the last line.
_LAUNCH = """
import json, subprocess, sys
try:
    done = subprocess.run([sys.executable, "-c", {program!r}], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout={time_s!r})
    result = [done.returncode, done.stdout]
except subprocess.TimeoutExpired as late:
    result = [None, late.stdout or b""]
print(json.dumps([result[0], result[1][:{max_bytes}].decode("utf-8", "replace")]))
"""


@dataclass(frozen=True, kw_only=True)
class E2BBackend(Backend):
    """Makes a sandbox for each call and ends it afterwards, so that calls share nothing. The template limits memory and
    disk.

    Attributes:
        template: E2B's template; None: the SDK's default.
        api_url, sandbox_url: of your own installation; None: E2B's.
    """

    template: str | None = None
    api_url: str | None = None
    sandbox_url: str | None = None

    def check(self) -> None:
        if importlib.util.find_spec("e2b_code_interpreter") is None:
            raise ValueError("The back-end e2b needs its SDK: `pip install e2b-code-interpreter`.")
        if not os.environ.get(_KEY):
            raise ValueError(f"The back-end e2b needs the environment variable {_KEY}.")

    async def run(self, code: str, history: Sequence[str], limits: Limits) -> WorkerReply:
        import e2b
        import httpx

        time_s = (1 + len(history)) * limits.time_s
        try:
            execution = await self._execute(remote_program(code, history), time_s)
        except (e2b.RateLimitException, e2b.TimeoutException, httpx.TransportError) as error:
            raise TransientToolError(f"E2B: {type(error).__name__}: {error}") from error
        except (e2b.SandboxException, e2b.AuthenticationException) as error:
            raise ToolError(f"E2B: {type(error).__name__}: {error}") from error
        if execution.error is not None:
            raise TransientToolError(f"E2B: {execution.error.name}: {execution.error.value}")
        try:
            exit_code, output = json.loads("".join(execution.logs.stdout))
            return WorkerReply(CallStatus.TIMEOUT, output) if exit_code is None else remote_reply(exit_code, output)
        except (TypeError, ValueError) as error:
            raise TransientToolError("E2B: the program's last line is missing or not understood.") from error

    async def _execute(self, program: str, time_s: float) -> Any:
        import e2b
        import httpx
        from e2b_code_interpreter import AsyncSandbox

        places = {"api_url": self.api_url, "sandbox_url": self.sandbox_url}
        sandbox = await AsyncSandbox.create(
            self.template,
            timeout=math.ceil(time_s + 2 * _GRACE_S),
            allow_internet_access=False,
            **{key: value for key, value in places.items() if value is not None},
        )
        try:
            launch = _LAUNCH.format(program=program, time_s=time_s, max_bytes=MAX_OUTPUT_BYTES + 1)
            return await sandbox.run_code(launch, timeout=time_s + _GRACE_S)
        finally:
            # Otherwise it ends by itself at its time-out.
            with contextlib.suppress(e2b.SandboxException, e2b.AuthenticationException, httpx.HTTPError):
                await sandbox.kill()
