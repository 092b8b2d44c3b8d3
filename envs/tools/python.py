"""The python tool: runs a program in a sandbox with limits on time, memory, processes, output and disk."""

from __future__ import annotations

import dataclasses
import functools
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.sandbox.backends import BACKENDS, Backend, LocalOptions
from rllib_arpo.envs.sandbox.fork_server import CallStatus, WorkerReply
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tools.tool import Tool, ToolResult, with_attempts
from rllib_arpo.envs.worlds.world import Call, Reply, World

#: The first line of a Markdown fence.
_FENCE = re.compile(r"```(?:python\d?|py\d?)?\s*", re.IGNORECASE)
#: Blank lines at the beginning of a text.
_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_LOST = "The session was lost: an earlier call of it could not be repeated. The next call starts anew."
#: Seconds for waiting (for a slot, a restart, a lost connection), which do not count towards the call's limit.
_SLACK_S = 300.0


@dataclass(frozen=True, kw_only=True)
class PythonTool(Tool, LocalOptions):
    """Runs Python code and shows what it printed, or the value of its last expression if it printed nothing.

    A call has no network, no other process, no shell and no standard input; it sees the interpreter, the standard
    library and `packages`, and writes to a folder of its own. Random numbers of `random` and of `numpy.random`'s
    functions start from the same seed in every call, with SandboxFusion only those of `random`. Nothing that a call
    leaves behind survives it.

    Attributes:
        time_limit_s: wall seconds of a call.
        memory_mb: address space of a call beyond what the preloaded modules use.
        session: whether variables survive until the next call of the same trajectory. Each call makes them again: it
            first repeats the code of the earlier calls that succeeded, so values that depend on the time or on the
            operating system's randomness may change.
        backend: "local" or "sandbox_fusion".
        backend_options: fields of the remote back-end's class, such as {"url": ...}.
        packages, unsafe: for the local back-end, see `LocalOptions`. A remote one shows whatever its server or
            template has installed.

    Raises:
        ValueError: the back-end cannot work here (`SandboxError`: bubblewrap is missing or not permitted).
    """

    name: ClassVar[str] = "python"
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "code": {"type": "string", "description": "The program."},
    }
    time_limit_s: float = 5.0
    memory_mb: int = 512
    max_result_tokens: int = 512
    max_attempts: int = 3
    session: bool = False
    backend: str = "local"
    backend_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("time_limit_s", "memory_mb"):
            if not getattr(self, key) > 0:
                raise ValueError(f"The python tool's {key} must be more than 0, not {getattr(self, key)}.")
        self._backend()

    @property
    def description(self) -> str:  # type: ignore[override]
        """See `Tool`. Which packages a remote back-end has, only its server or template knows."""
        packages = f" (it can import {', '.join(self.packages)})" if self.backend == "local" and self.packages else ""
        return f"Runs a Python program{packages} and returns what it prints, or its last line's value."

    @functools.cached_property
    def make_world(self) -> Callable[[], World] | None:
        return partial(PythonSession, self) if self.session else None

    @property
    def timeout_s(self) -> float:  # type: ignore[override]
        """Longer than the limits that the back-end itself enforces."""
        return 2 * self.time_limit_s + _SLACK_S

    def prepare(self) -> None:
        self._backend().prepare()

    def read(self, argument: str) -> str:
        return program(argument)

    def as_call(self, argument: str) -> Call:
        return Call(self.name, {"code": argument})

    async def __call__(self, code: str) -> ToolResult:
        return self.result_of(await self.run(code))

    async def run(self, code: str, history: tuple[str, ...] = ()) -> WorkerReply:
        """Runs a program after the earlier ones of a session."""
        return await self._backend().run(code, history, self.time_limit_s, self.memory_mb)

    def result_of(self, reply: WorkerReply) -> ToolResult:
        """A reply of the back-end as the model reads it."""
        # The first line keeps its indentation, on which a table's columns stand.
        output = _BLANK_LINES.sub("", reply.output).rstrip()
        if reply.status == CallStatus.OK:
            return ToolResult(output or "(no output)")
        if reply.status == CallStatus.TIMEOUT:
            return ToolResult(_lines(output, f"Time limit of {self.time_limit_s:g} s exceeded."), ToolStatus.TIMEOUT)
        note = {
            CallStatus.ERROR: "" if output else "The program ended with an error.",
            CallStatus.OUTPUT: "Too much output: the program was stopped.",
            CallStatus.SIGNAL: f"The program was killed by signal {reply.signal}.",
            CallStatus.REPLAY: _LOST,
            CallStatus.WORKER: "The Python process died.",
        }[reply.status]
        return ToolResult(_lines(output, note), ToolStatus.ERROR)

    def _backend(self) -> Backend:
        check_known([self.backend], BACKENDS, "back-end of the python tool")
        backend: Any = BACKENDS[self.backend]
        own = self.backend == "local"
        known = () if own else {f.name for f in dataclasses.fields(backend)}
        check_known(self.backend_options, known, f"option of the back-end {self.backend!r}")
        local = {f.name: getattr(self, f.name) for f in dataclasses.fields(LocalOptions)}
        local["packages"] = tuple(local["packages"])
        made: Backend = backend(**(local if own else self.backend_options))
        return made


class PythonSession(World):
    """The variables of a trajectory: each call first repeats the code of the calls that succeeded."""

    def __init__(self, tool: PythonTool, history: Sequence[str] = ()):
        self.tool, self.history = tool, list(history)
        self.timeout_s = tool.timeout_s

    async def act(self, action: Call | str) -> Reply:
        assert isinstance(action, Call)
        code = action.arguments["code"]
        reply = await with_attempts(self.tool.max_attempts, self.tool.run, code, tuple(self.history))
        if reply.status == CallStatus.REPLAY:
            self.history.clear()
        elif reply.status == CallStatus.OK:
            self.history.append(code)
        result = self.tool.result_of(reply)
        return Reply(result.text, status=result.status)

    async def fork(self) -> World:
        return PythonSession(self.tool, self.history)


def program(argument: str) -> str:
    """The code in a call's argument, without a Markdown fence around it and without common indentation."""
    head, _, rest = argument.strip().partition("\n")
    if _FENCE.fullmatch(head) and rest.endswith("```"):
        argument = rest.removesuffix("```")
    return textwrap.dedent(argument).strip()


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
