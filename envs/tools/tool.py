"""The interface of a tool: text in, text and a status out. Failures are observations; bugs propagate."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ContractError, ToolError, TransientToolError, as_tool_error
from rllib_arpo.envs.support.loop_thread import in_thread, uncancelled
from rllib_arpo.envs.support.per_loop import slot
from rllib_arpo.envs.support.texts import valid_unicode
from rllib_arpo.envs.tools.arguments import check_arguments, schema_validator

if TYPE_CHECKING:
    from rllib_arpo.envs.worlds.world import Call

T = TypeVar("T")

#: The names of the tags that protocols read and write, besides the tools' own tags.
THINK = "think"
#: Tags of the tag protocol: a tool's answer, and the model's.
RESULT, ANSWER = "result", "answer"
#: Tags of native function calling: a call, a tool's answer, and the list of the tools.
CALL, RESPONSE, TOOLS = "tool_call", "tool_response", "tools"
#: No tool can have one of these names.
RESERVED_NAMES = frozenset({THINK, RESULT, ANSWER, CALL, RESPONSE, TOOLS})
#: What every protocol can write as a name.
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
#: Seconds before the first repetition of a failed call, and the longest wait (doubled every time, drawn at random).
RETRY_WAIT_S, MAX_RETRY_WAIT_S = 0.5, 10.0
#: Longer texts than this many characters a token are cut before they are tokenised.
_MAX_CHARS_PER_TOKEN = 20


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The text that the model reads (without tags) and the outcome of the call."""

    text: str
    status: ToolStatus = ToolStatus.OK


class Tool(ABC):
    """A tool: a function of its argument. One instance serves all trajectories of an environment at once.

    A subclass is a dataclass whose fields are its configuration (`env_config["tools"][name]`). Calls that change a
    state of the trajectory act in a `World`, which the tool makes for each.

    Attributes:
        name: the name by which the model calls it.
        description: one sentence that tells the model what the tool does.
        parameters: name -> JSON schema of each argument; for native function calling.
        required: the names of the parameters that every call must give; None: all of them.
        make_world: makes the `World` in which a trajectory's calls act; tools with the same `make_world` share it.
            None: the tool is a function.
        blocking: whether `__call__` is a plain function that waits (`def`, `time.sleep`, `requests`): each call then
            runs in a thread. A call that is given up is answered in time, but its thread keeps running with its state.
        timeout_s: seconds after which a call, repetitions included, is given up with `ToolStatus.TIMEOUT`.
        max_result_tokens: longer results are cut in the middle.
        max_concurrency: how many calls run at once in this process, over all tools of this name; further calls wait,
            which does not count towards their time limit. None: any number.
        max_attempts: how often a call is tried if it fails with a `TransientToolError`.
    """

    name: ClassVar[str]
    description: ClassVar[str] = ""
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    required: ClassVar[Sequence[str] | None] = None
    blocking: ClassVar[bool] = False
    timeout_s: float
    max_result_tokens: int
    max_concurrency: int | None = None
    max_attempts: int = 1
    make_world: ClassVar[Any] = None

    def expand(self) -> dict[str, Tool]:
        """Name -> the tools that this entry of `env_config["tools"]` stands for: the tool itself."""
        return {self.name: self}

    def check_schema(self) -> None:
        """Raises a ValueError if the schema of the arguments cannot be used."""
        try:
            _ = self._validator
        except ValueError as error:
            raise ValueError(f"The schema of the tool {self.name!r} is wrong ({error}).") from error

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Checks a call's arguments.

        Raises:
            ToolError: they do not fit the schema.
        """
        check_arguments(self.name, self._validator, arguments)

    @functools.cached_property
    def _validator(self) -> Any:
        return schema_validator(self.schema())

    def shielded(self, shield: Callable[[str], str]) -> Tool:
        """The tool as prompts describe it: `shield` is applied to texts that come from elsewhere."""
        return self

    def prepare(self) -> None:
        """Does the slow work of the first call in advance (starting a process, building an index); blocks. Optional."""
        return None

    def inputs(self) -> Mapping[str, str]:
        """Path -> a fingerprint of the content, for every file that calls read and never write."""
        return {}

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a call's arguments, for native function calling."""
        required = self.parameters if self.required is None else self.required
        return {"type": "object", "properties": dict(self.parameters), "required": list(required)}

    def text_argument(self, arguments: Mapping[str, Any]) -> Any:
        """The argument of `read` for a native function call: all parameters as JSON, or the only one's value.

        A value that is not a text is written as JSON, as the model writes it between tags ("3", "[1, 2]").

        Raises:
            ToolError: they do not fit the schema.
        """
        self.check(arguments)
        if len(self.parameters) != 1:
            return json.dumps(dict(arguments), ensure_ascii=False)
        (name,) = self.parameters
        value = arguments.get(name, "")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def read(self, argument: Any) -> Any:
        """A call's argument in the form that `__call__` takes: the text itself, unless the tool parses it here.

        Whatever this raises is the model's mistake, and becomes its observation. It runs in the rollout's event loop,
        so its time must be linear in the argument's length.
        """
        return argument

    def as_call(self, argument: Any) -> Call:
        """The call that the world gets; `argument` is what `read` has returned."""
        raise NotImplementedError

    @abstractmethod
    async def __call__(self, argument: Any) -> ToolResult | str:
        """Runs one call. An exception that is not listed here is a bug.

        Args:
            argument: what `read` has returned.

        Returns:
            The result, or its text alone if the call succeeded.

        Raises:
            ToolError: the call is at fault; `TransientToolError` if a repetition may help.
            BrokenToolError: the tool cannot be used any more.
        """


def check_name(name: str) -> None:
    """Raises a ValueError unless every protocol can write `name`, the name of a tool from elsewhere."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a tool: it has letters, digits and '_', '.', '-' only")


async def run_tool(tool: Tool, argument: str | Mapping[str, Any]) -> ToolResult:
    """Runs one call under the tool's limits of time and concurrency, and repeats it if that can help.

    The result's text is valid Unicode, whatever the tool's service sent. Reading the argument (a text, or the arguments
    of a native function call) is a step of its own: whatever it raises is the model's mistake.
    """
    try:
        read = read_argument(tool, argument)
        async with slot_of(tool):
            try:
                async with asyncio.timeout(tool.timeout_s) as limit:
                    result = await with_attempts(tool.max_attempts, _result, tool, read)
            except TimeoutError:
                if not limit.expired():  # The tool's own.
                    raise
                return ToolResult(time_limit_exceeded(tool.timeout_s), ToolStatus.TIMEOUT)
    except ToolError as error:
        result = ToolResult(str(error), ToolStatus.ERROR)
    return dataclasses.replace(result, text=valid_unicode(result.text))


async def _result(tool: Tool, argument: Any) -> ToolResult:
    """The result of a call.

    Raises:
        ContractError: it is neither a `ToolResult` nor a text.
    """
    with uncancelled("CancelledError, though nobody has cancelled the call"):
        call = in_thread(tool, argument) if tool.blocking else tool(argument)
        if not inspect.isawaitable(call):
            raise ContractError(f"The tool {tool.name!r} has a plain `def __call__`: make it async, or set blocking.")
        result: Any = await call
    if isinstance(result, str):
        return ToolResult(result)
    if not (isinstance(result, ToolResult) and isinstance(result.text, str)):
        raise ContractError(f"The tool {tool.name!r} must return a ToolResult or a str, not {result!r:.80}.")
    return result


def read_argument(tool: Tool, argument: str | Mapping[str, Any]) -> Any:
    """The argument of a call as `Tool.read` returns it.

    Raises:
        ToolError: it cannot be read, which is the model's mistake.
    """
    with as_tool_error(f"{tool.name} cannot read its argument: "):
        given = argument if isinstance(argument, str) else tool.text_argument(argument)
        if isinstance(given, str):
            given.encode()  # Half of a character could not be sent to any service.
        return tool.read(given)


def slot_of(tool: Tool) -> AbstractAsyncContextManager[Any]:
    """One of the `max_concurrency` slots of a tool in this event loop."""
    return nullcontext() if tool.max_concurrency is None else slot(tool.name, tool.max_concurrency)


async def with_attempts(number: int, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """The result of `function`, which is called again, at most `number` times, after a `TransientToolError`."""
    from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    attempts = AsyncRetrying(
        retry=retry_if_exception_type(TransientToolError),
        stop=stop_after_attempt(number),
        wait=wait_random_exponential(RETRY_WAIT_S, MAX_RETRY_WAIT_S),
        reraise=True,
    )
    return await attempts(function, *arguments)


def cut(tokenizer: Any, text: str, max_tokens: int) -> str:
    """`text`, without its middle if it is longer than `max_tokens` tokens (not counting the note about this)."""
    max_chars = _MAX_CHARS_PER_TOKEN * max_tokens
    head, tail = text, ""
    if len(text) > 2 * max_chars:
        head, tail = text[:max_chars], text[-max_chars:]
    token_ids = tokenizer.encode(head + tail, add_special_tokens=False)
    if len(token_ids) > max_tokens:
        num_last = max_tokens // 4
        head = tokenizer.decode(token_ids[: max_tokens - num_last]).rstrip("�")
        tail = tokenizer.decode(token_ids[len(token_ids) - num_last :]).lstrip("�") if num_last else ""
    elif not tail:
        return text
    return f"{head}\n[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"


def time_limit_exceeded(seconds: float) -> str:
    """The result of a call that was given up."""
    return f"Time limit of {seconds:g} s exceeded."
