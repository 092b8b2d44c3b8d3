"""Tasks of verifiers 0.4 in a process of its Python: the tools of their toolsets, and their rewards.

`verifiers.py` gives this file's path to `far_side.py`. As a script, `far_verifiers.py TASKSET NUMBER CONFIG` prints
tasks. There is neither a harness nor a runtime: a tool is called as a method, and a task that uses its runtime fails.
"""

from __future__ import annotations

import json
import sys
from typing import Any, ClassVar

import verifiers.v1 as vf
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from verifiers.v1.mcp.server import _call_state
from verifiers.v1.state import state_cls
from verifiers.v1.utils.decorators import discover_decorated, invoke

#: Stands for the runtime that is missing here.
NOWHERE = object()


def taskset_of(name: str, config: dict[str, Any]) -> Any:
    return vf.load_taskset(vf.taskset_config_type(name)(id=name, **config))


class Tasks:
    """A task, made from its row, with the methods that `far_side.WorldLike` calls.

    Attributes:
        shared: the toolsets of all tasks; None before their `setup`. A fork does not copy them.
    """

    shared: ClassVar[list[Any] | None] = None

    def __init__(self, taskset: str, config: dict[str, Any]):
        made = taskset_of(taskset, config)
        self._kind, self._config = made.task_type(), made.config.task
        if self._kind.NEEDS_CONTAINER:
            raise ValueError(f"the tasks of {taskset} need a container")
        self._toolsets = self._kind.toolsets(self._config)
        self.tools: dict[str, Any] = {}
        self._calls: list[tuple[Any, str]] = []

    async def reset(self, row: dict[str, Any]) -> None:
        self._task = self._kind(self._kind.data_type().model_validate(row), self._config)
        about = vf.TraceTask(type=self._kind.__name__, data=self._task.data)
        agent = vf.AgentInfo(config=vf.AgentConfig())
        self._trace = vf.Trace(task=about, agent=agent, state=state_cls(self._kind)())
        for message in self._task.data.prompt:
            self._note(message)
        await invoke(self._task.setup, {"trace": self._trace, "runtime": NOWHERE})
        for toolset in self._toolsets:
            await toolset.setup()
            await toolset.setup_task(self._task)

    async def act(self, call: dict[str, Any]) -> str:
        # A toolset looks here for the state of the trajectory that calls it.
        _call_state.set(self._trace.state)
        said = ""
        try:
            result = await self.found()[call["tool"]].run(call["arguments"], None, convert_result=True)
            said = "\n".join(block.text for block in result.content)
        except ToolError as error:
            said = str(error)
            raise ValueError(said) from error
        finally:
            number, arguments = str(len(self._calls)), json.dumps(call["arguments"])
            self._calls.append((vf.ToolCall(id=number, name=call["tool"], arguments=arguments), said))
        return said

    async def score(self, turns: list[str]) -> float:
        """The weighted sum of the trace's rewards. The first turns made the calls, one each."""
        calls = iter(self._calls)
        for turn in turns:
            call, result = next(calls, (None, ""))
            said = None if call else turn.rpartition("</think>")[2].strip()
            self._note(vf.AssistantMessage(content=said, tool_calls=call and [call]), sampled=True)
            if call:
                self._note(vf.ToolMessage(tool_call_id=call.id, content=result))
        await invoke(self._task.finalize, {"trace": self._trace, "runtime": NOWHERE})
        await self._task.score(self._trace, NOWHERE)
        return self._trace.reward

    def found(self) -> dict[str, Any]:
        """The tools, by the names that a harness gives them."""
        toolsets = [*(Tasks.shared or ()), *self._toolsets]
        marked = [(one.server_name, function) for one in toolsets for function in discover_decorated(one, "tool")]
        tools = [(server, Tool.from_function(function, function.tool_name)) for server, function in marked]
        return {f"{server}_{tool.name}" if server else tool.name: tool for server, tool in tools}

    def _note(self, message: Any, sampled: bool = False) -> None:
        parent = len(self._trace.nodes) - 1 if self._trace.nodes else None
        self._trace.nodes.append(vf.MessageNode(message=message, parent=parent, sampled=sampled))


async def tasks(taskset: str, config: dict[str, Any]) -> Tasks:
    """Makes a task. The first call, at the process's start, also sets up the shared toolsets, on no world's time."""
    task = Tasks(taskset, config)
    if Tasks.shared is None:
        made = taskset_of(taskset, config)
        shared = made.toolsets(made.config)
        for toolset in shared:
            await toolset.setup()
        Tasks.shared = shared
    task.tools = {name: {**one.parameters, "description": one.description} for name, one in task.found().items()}
    return task


def main(name: str, number: str, config: str) -> None:
    """Prints the first tasks, one JSON object each; its `prompt` is a list of messages."""
    for task in taskset_of(name, json.loads(config)).take(int(number)):
        prompt, system = task.data.prompt, task.data.system_prompt
        messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        messages = [vf.SystemMessage(content=system), *messages] if system else messages
        print(task.with_data(prompt=messages, system_prompt=None).data.model_dump_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
