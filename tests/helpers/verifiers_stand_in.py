"""In the place of verifiers 0.4: a test writes this file to `verifiers/v1/__init__.py`."""

from __future__ import annotations

import contextvars
import importlib
import inspect
import itertools
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel

One, Other = TypeVar("One"), TypeVar("Other")
_call_state = contextvars.ContextVar("state", default=None)


class Message(BaseModel):
    role: str = "user"
    content: str | None = None


class State(BaseModel): ...


class TaskData(BaseModel):
    prompt: str | list[Message]
    system_prompt: str | None = None


class ToolsetConfig(BaseModel): ...


class AgentConfig(BaseModel): ...


class TasksetConfig(BaseModel):
    id: str = ""
    task: Any = None


class _Role(SimpleNamespace):
    role = ""


class AssistantMessage(_Role):
    role = "assistant"


class ToolMessage(_Role):
    role = "tool"


def UserMessage(content):
    return Message(content=content)


def SystemMessage(content):
    return Message(role="system", content=content)


ToolCall = MessageNode = AgentInfo = TraceTask = SimpleNamespace


class Trace:
    def __init__(self, task, agent, state):
        self.task, self.state, self.nodes, self.info, self.reward = task, state, [], {}, 0.0

    @property
    def messages(self):
        assert [node.parent for node in self.nodes] == [None, *range(len(self.nodes) - 1)]
        return [node.message for node in self.nodes]

    @property
    def tool_messages(self):
        return [message for message in self.messages if message.role == "tool"]

    @property
    def last_reply(self):
        return [node.message.content for node in self.nodes if node.sampled][-1] or ""


def tool(function=None, name=None):
    def marked(function):
        function.tool, function.tool_name = True, name
        return function

    return marked if function is None else marked(function)


def reward(function=None, weight=1.0):
    def marked(function):
        function.reward, function.weight = True, weight
        return function

    return marked if function is None else marked(function)


def discover_decorated(owner, mark):
    return [one for _, one in inspect.getmembers(owner, inspect.ismethod) if hasattr(one, mark)]


def invoke(function, available):
    return function(**{name: available[name] for name in inspect.signature(function).parameters})


def state_cls(kind):
    return next((one for one in get_args(kind.__orig_bases__[0]) if issubclass(one, State)), State)


class Toolset(Generic[One, Other]):
    TOOL_PREFIX = ""

    def __init__(self, config):
        self.config = config

    server_name = property(lambda self: "" if self.TOOL_PREFIX is None else type(self).__name__.lower())
    state = property(lambda self: _call_state.get())

    async def setup(self): ...

    async def setup_task(self, task): ...


class Task(Generic[One, Other]):
    NEEDS_CONTAINER = False

    def __init__(self, data, config):
        self.data, self.config = data, config

    @classmethod
    def data_type(cls):
        return get_args(cls.__orig_bases__[0])[0]

    def with_data(self, **update):
        return type(self)(self.data.model_copy(update=update), self.config)

    async def finalize(self): ...

    async def score(self, trace, runtime):
        for one in discover_decorated(self, "reward"):
            trace.reward += one.weight * await one(trace)


class Taskset(Generic[One, Other]):
    def __init__(self, config):
        self.config = config

    @classmethod
    def task_type(cls):
        return get_args(cls.__orig_bases__[0])[0]

    def take(self, number):
        return itertools.islice(self.load(), number)


def _taskset(name):
    module = importlib.import_module(name)
    return getattr(module, module.__all__[0])


def taskset_config_type(name):
    return get_args(_taskset(name).__orig_bases__[0])[1]


def load_taskset(config):
    return _taskset(config.id)(config)
