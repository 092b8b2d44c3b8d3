"""The back-ends that run the python tool's programs: interpreters inside bubblewrap here, or a SandboxFusion server."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import ToolError, TransientToolError, is_transient
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.fork_server import MAX_OUTPUT_BYTES, CallStatus, ForkServer, WorkerReply, shared_server
from rllib_arpo.envs.sandbox.packages import DEFAULT, import_names
from rllib_arpo.envs.support.per_loop import http_client

#: Module, which is imported once if it is visible -> code that runs once, so that no call pays for its first use.
WARM_UPS = {
    "numpy": "numpy.linalg.solve(numpy.eye(2), numpy.ones(2)); numpy.random.default_rng(0).normal()",
    "sympy": (
        "x = sympy.Symbol('x'); sympy.solve(x**2 - 2, x); sympy.simplify(sympy.sin(x)**2 + sympy.cos(x)**2);"
        " sympy.integrate('x*exp(x)', x); sympy.factorint(360); str(sympy.sqrt(8) / 3 + sympy.Rational(1, 2)).strip();"
        " sympy.latex(x); sympy.N(sympy.pi, 20); sympy.diff(sympy.log(x), x); sympy.limit(sympy.sin(x) / x, x, 0)"
    ),
}
#: The exit code of a program whose session could not be repeated.
_REPLAY_FAILED = 113
_EXECUTE = Path(__file__).with_name("server") / "execute.py"
_TAIL = """
import json, random
random.seed(0)
sys.stdout.reconfigure(line_buffering=True)  # A program that is stopped keeps its lines.
history, code = json.loads({request!r})
variables = new_variables()
exit_code = execute(code, variables) if replay(history, variables) else {replay_failed}
sys.stdout.flush()
os._exit(exit_code)
"""
#: Seconds that the server may take beyond a call's own limit, since calls may queue.
_GRACE_S = 60.0


class Backend(ABC):
    """Runs programs; a dataclass whose fields are its configuration. Cheap to make: its resources are shared.

    Raises:
        ValueError: it cannot work on this machine or with its configuration.
    """

    def prepare(self) -> None:
        """Does the slow work of the first call in advance; blocks."""
        return None

    @abstractmethod
    async def run(self, code: str, history: Sequence[str], time_s: float, memory_mb: int) -> WorkerReply:
        """Runs `history` without showing its output, then `code`, in a fresh interpreter.

        Args:
            time_s: wall seconds of each of them.
            memory_mb: MiB of memory beyond the interpreter's.

        Raises:
            TransientToolError: a repetition may help.
            ToolError: the back-end refuses the call.
            BrokenToolError: the back-end cannot be used any more.
        """


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """The settings of the interpreters on this machine.

    Attributes:
        packages: what the code can import besides the standard library: these packages and what they require.
        unsafe: run the code without bubblewrap: it can then do whatever this process's user can.
    """

    packages: tuple[str, ...] = DEFAULT
    unsafe: bool = False


@dataclass(frozen=True, kw_only=True)
class LocalBackend(LocalOptions, Backend):
    """One server for all tools of this process with the same configuration."""

    def __post_init__(self) -> None:
        if not self.unsafe:
            bubblewrap.check_available()
            _ = import_names(self.packages)

    def prepare(self) -> None:
        self.server().start()

    async def run(self, code: str, history: Sequence[str], time_s: float, memory_mb: int) -> WorkerReply:
        return await self.server().run(code, time_s, memory_mb, history)

    def server(self) -> ForkServer:
        visible = WARM_UPS.keys() if self.unsafe else import_names(self.packages)
        warm_ups = [f"import {name}\n{use}" for name, use in WARM_UPS.items() if name in visible]
        return shared_server("\n".join(warm_ups), not self.unsafe, self.packages)


@dataclass(frozen=True, kw_only=True)
class SandboxFusionBackend(Backend):
    """A server of SandboxFusion (https://github.com/bytedance/SandboxFusion).

    The request limits time and memory; only the server can limit files. Each call seeds `random` alone: numbers of
    `numpy.random` and hashes of texts differ from call to call.

    Attributes:
        url: the server's address, e.g. "http://10.0.0.5:8080".
    """

    url: str = ""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError("The back-end sandbox_fusion needs backend_options={'url': 'http://...'}, its server.")

    async def run(self, code: str, history: Sequence[str], time_s: float, memory_mb: int) -> WorkerReply:
        body = await self._post(
            {
                "code": _whole_program(code, history),
                "language": "python",
                "run_timeout": (1 + len(history)) * time_s,
                "memory_limit_MB": memory_mb,
            }
        )
        try:
            return self._read(body)
        except (AttributeError, KeyError, TypeError) as error:
            raise self._odd() from error

    async def _post(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        import httpx

        url = f"{self.url.rstrip('/')}/run_code"
        try:
            response = await http_client().post(url, json=request, timeout=request["run_timeout"] + _GRACE_S)
        except httpx.TransportError as error:
            raise TransientToolError(f"The sandbox at {self.url} did not answer ({type(error).__name__}).") from error
        if is_transient(response.status_code):
            raise TransientToolError(f"The sandbox at {self.url} answered with HTTP {response.status_code}.")
        if response.status_code != 200:
            raise ToolError(f"The sandbox at {self.url} answered with HTTP {response.status_code}.")
        try:
            return response.json()
        except ValueError as error:
            raise self._odd() from error

    def _odd(self) -> TransientToolError:
        """The error for replies that do not come from SandboxFusion, but for instance from a proxy in front of it."""
        return TransientToolError(f"The sandbox at {self.url} sent a reply that is not understood.")

    def _read(self, body: Mapping[str, Any]) -> WorkerReply:
        result = body.get("run_result")
        if result is None or result["status"] == "Error":
            raise TransientToolError(f"The sandbox at {self.url} failed: {body.get('message') or body.get('status')}.")
        output = (result.get("stdout") or "") + (result.get("stderr") or "")
        if result["status"] == "TimeLimitExceeded":
            return WorkerReply(CallStatus.TIMEOUT, output)
        return _reply(result["return_code"], output)


def _whole_program(code: str, history: Sequence[str]) -> str:
    """A whole program that runs `history` silently, then `code`; its exit code states the outcome."""
    tail = _TAIL.format(request=json.dumps([list(history), code]), replay_failed=_REPLAY_FAILED)
    return _EXECUTE.read_text(encoding="utf-8") + tail


def _reply(exit_code: int, output: str) -> WorkerReply:
    """The reply for a program that ended by itself."""
    if len(output) > MAX_OUTPUT_BYTES:
        return WorkerReply(CallStatus.OUTPUT, output[:MAX_OUTPUT_BYTES])
    if exit_code == _REPLAY_FAILED:
        return WorkerReply(CallStatus.REPLAY, output)
    if exit_code < 0:
        return WorkerReply(CallStatus.SIGNAL, output, -exit_code)
    return WorkerReply(CallStatus.ERROR if exit_code else CallStatus.OK, output)


#: Name -> back-end; its fields are `backend_options` of the tool, except for "local", whose fields are the tool's own.
BACKENDS: dict[str, type[Backend]] = {
    "local": LocalBackend,
    "sandbox_fusion": SandboxFusionBackend,
}
