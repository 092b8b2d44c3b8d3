"""What a model writes never masks it, and never blocks the rollout's loop: random turns in every protocol.

Programs, pages, MCP servers and algebra are stand-ins, since the real ones run in processes of their own; what reads
the model's text is real.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rllib_arpo.core.tree import MASKED_STOP_REASONS, ToolStatus
from rllib_arpo.envs.forkable_env import INFO_STEP, OPTION_NUM_ROOTS, OPTION_QUESTION, StepInfo
from rllib_arpo.envs.question import MATH, QA, Question
from rllib_arpo.envs.rewards.mathematics import accuracy
from rllib_arpo.envs.sandbox.backends import BACKENDS
from rllib_arpo.envs.sandbox.fork_server import CallStatus, WorkerReply
from rllib_arpo.envs.support.chat_client import ChatClient
from rllib_arpo.envs.support.texts import valid_unicode
from rllib_arpo.envs.tasks import Task
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.registry import TOOLS
from rllib_arpo.envs.tools.tool import Tool, ToolResult
from rllib_arpo.envs.web.readable import Page
from rllib_arpo.envs.worlds.functions import FunctionTool
from tests.envs.test_growth import SHAPES
from tests.helpers.chat_templates import calling_folder

OK, ERROR = ToolStatus.OK, ToolStatus.ERROR
#: Seconds of processor time for which one turn may hold the loop, in the best of three attempts: a busy machine takes
#: more of it for the same work. That the time grows with the text's length alone is tests/envs/test_growth.py's matter.
MAX_BLOCKED_S = 0.2
GOLDS = [
    *((MATH, gold) for gold in ("5", "-3/4", "x^2+1", r"\{1,2,3\}", "(1,2)", "(1,2]", "50\\%", r"\text{odd}", "x=3")),
    (QA, "Paris"),
    (QA, "C++"),
]


@dataclass(frozen=True, kw_only=True)
class GoldsTask(Task):
    tools: ClassVar = ()
    split: str = "train"
    seed: int = 0
    num_questions: ClassVar = len(GOLDS)

    def question(self, number, tools=()):
        ability, gold = GOLDS[number % len(GOLDS)]
        return Question(str(number), (("user", f"What is {gold} - 1?"),), (gold,), ability, "here")


@dataclass(frozen=True, kw_only=True)
class TypedTool(Tool):
    """Reads its argument as a user may: without a thought of wrong ones."""

    name: ClassVar[str] = "typed"
    parameters: ClassVar[Mapping] = {"a": {"type": "integer"}, "b": {"type": ["array", "null"]}, "c": {}}
    required: ClassVar = ("a",)
    timeout_s: float = 5.0
    max_result_tokens: int = 100

    def read(self, argument):
        return math.log(float(json.loads(argument)["a"]))

    async def __call__(self, argument):
        return ToolResult(f"{argument:g}")


@dataclass(frozen=True, kw_only=True)
class FewMcpTools:
    name: ClassVar[str] = "mcp"

    def expand(self):
        text, number = {"type": "string", "maxLength": 9}, {"type": "integer", "multipleOf": 3}
        schemas = {
            "one": {"properties": {"item": text}, "required": ["item"]},
            "many": {"properties": {"a": number, "b": {"anyOf": [text, {"type": "array", "items": number}]}, "c": {}}},
            "tree": {"properties": {"a": {"$ref": "#"}, "b": {"enum": [1, "x"]}}},
        }
        return {
            name: FunctionTool(
                name=name,
                function=json.dumps,
                arguments=lambda given: ((given,), {}),
                input_schema={"type": "object", **schema},
                timeout_s=5.0,
                max_result_tokens=100,
            )
            for name, schema in schemas.items()
        }


@dataclass(frozen=True)
class EchoBackend:
    def check(self):
        pass

    prepare = check

    async def run(self, code, history, time_s, memory_mb):
        return WorkerReply(CallStatus.OK, code)


#: Tool -> a right argument.
RIGHT = {
    "python": '{"code": "1"}', "search": '{"query": "lamp"}', "browse": '{"url": "http://a.org"}', "typed": '{"a": 3}',
    "one": '{"item": "x"}', "many": '{"a": 3}', "tree": '{"b": 1}',
}  # fmt: skip
#: Tool -> an argument that the tool itself refuses; nearly any text may be a program or a query.
WRONG = {
    "browse": '{"url": "nowhere"}', "typed": '{"a": []}', "one": '{"item": "longer than nine"}', "many": '{"a": 4}',
    "tree": '{"b": 2}',
}  # fmt: skip
UNITS = sorted({valid_unicode(part) for shape in SHAPES for part in shape})
texts = st.lists(st.sampled_from(UNITS) | st.text(max_size=6), max_size=8).map("".join)
repeated = st.builds(lambda unit, times: unit * times, st.sampled_from(UNITS), st.integers(2, 800))
written = texts | repeated
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(["\ud83d", 10**400, "x", 3]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc") | texts, inner, max_size=3),
    max_leaves=6,
)
names_of_arguments = st.sampled_from(["code", "query", "url", "item", "a", "b", "c"])
objects = st.dictionaries(names_of_arguments | texts, values, max_size=3).map(json.dumps)
deep = st.integers(1, 3000).map(lambda times: '{"a":' * times + "1" + "}" * times)
urls = st.builds("{}{}".format, st.sampled_from(["http://", "https://a.org", "http://a.org/", "//"]), written)
arguments = objects | written | values.map(json.dumps) | deep | urls
before = st.sampled_from(["", "", "So: "]) | texts
after = st.sampled_from(["", "", ".\n"]) | texts
boxes = st.builds("{}\\boxed{{{}}}{}".format, before, written, after)

#: Protocol -> a call: text before it, the tool, the argument, text after it.
CALLS = {
    "tags": "{0}<{1}> {2} </{1}>{3}",
    "function_calling": '{}<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>{}',
}


def turns(protocol: str) -> list[st.SearchStrategy[str]]:
    """The turns of a question; each trajectory begins with another of them, and goes on with the next."""
    form, answers = CALLS[protocol].format, boxes.map("<answer> {} </answer>".format) if protocol == "tags" else boxes
    calls = [st.builds(form, before, st.just(name), arguments | st.just(RIGHT[name]), after) for name in RIGHT]
    return [written, answers, *calls]


def every_tool(protocol: str, arguments: Mapping[str, str]) -> tuple[str, ...]:
    """A turn for each of these tools."""
    return tuple(CALLS[protocol].format("", name, argument, "") for name, argument in arguments.items())


@pytest.fixture
def stand_ins(monkeypatch):
    async def opened(tool, url):
        return Page(url, "A page", url)

    async def judged(client, messages, is_readable):
        return messages[-1]["content"]

    async def decided(gold, answer, question):
        return gold == answer

    monkeypatch.setitem(BACKENDS, "echo", EchoBackend)
    monkeypatch.setattr(BrowseTool, "_page", opened)
    monkeypatch.setattr(ChatClient, "complete", judged)
    monkeypatch.setattr(accuracy, "_equal_by_algebra", decided)
    monkeypatch.setattr("rllib_arpo.envs.rewards.judge._CHECKS", ())
    monkeypatch.setitem(TOOLS, "mcp", FewMcpTools)
    monkeypatch.setitem(TOOLS, "typed", TypedTool)


def make_env(folder, protocol: str, **keys) -> ToolEnv:
    tools = {"python": {"backend": "echo"}, "search": {"documents": [{"text": "lamp"}]}}
    tools |= {name: {} for name in ("browse", "mcp", "typed")}
    config = {
        "model_name_or_path": calling_folder(folder),
        "task": f"{__name__}:GoldsTask",
        "tools": tools,
        "protocol": protocol,
    }
    return ToolEnv({**config, "max_response_tokens": 100_000, "max_context_tokens": 200_000, **keys})


async def play(env: ToolEnv, number: int, written: Sequence[str]) -> tuple[list[StepInfo], float]:
    """(what became of each turn, the longest time for which one of them held the loop) of a question."""
    env.reset(options={OPTION_QUESTION: number, OPTION_NUM_ROOTS: len(written)})
    steps, longest = [], 0.0

    async def beat():
        nonlocal longest
        while True:
            begin = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - begin)

    heart = asyncio.create_task(beat())
    await asyncio.sleep(0)
    for i, agent in enumerate(env.agents):
        for turn in (*written[i:], *written[:i]):
            tokens = np.asarray(env.tokenizer.encode(turn, add_special_tokens=False), np.int32)
            _, reward, terminated, truncated, info = await env.step_agent(agent, tokens)
            assert math.isfinite(reward)
            steps.append(info[INFO_STEP])
            assert steps[-1].stop_reason not in MASKED_STOP_REASONS
            if terminated or truncated:
                break
    heart.cancel()
    return steps, longest


@pytest.mark.parametrize("num_turns", [500, pytest.param(3_500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("protocol", "keys"),
    [
        ("tags", {"reward": {"hierarchical": 1.0, "accuracy": 0.5, "valid_format": 0.5, "tool_calls": -0.1}}),
        ("function_calling", {"qa_metric": "judge", "judge": {"base_url": "http://a.org", "model": "m"}}),
    ],
)
def test_no_turn_masks_its_trajectory_or_holds_the_loop(tmp_path, stand_ins, protocol, keys, num_turns):
    env = make_env(tmp_path, protocol, **keys)
    outcomes: Counter[object] = Counter()
    slowest: tuple[float, Sequence[str]] = (0.0, ())
    random_turns = turns(protocol)

    @settings(
        max_examples=num_turns // len(random_turns), derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @example(0, every_tool(protocol, RIGHT))
    @example(0, every_tool(protocol, WRONG))
    @given(st.integers(0, len(GOLDS) - 1), st.tuples(*random_turns))
    def fuzz(number, written):
        nonlocal slowest
        steps, longest = runner.run(play(env, number, written))
        for step in steps:
            outcomes[(step.tool_call.name, step.tool_call.status) if step.tool_call else step.stop_reason] += 1
        for _ in range(2):
            if longest > MAX_BLOCKED_S:
                longest = min(longest, runner.run(play(env, number, written))[1])
        slowest = max(slowest, (longest, written))

    for number, (_, gold) in enumerate(GOLDS):
        answer = f"<answer> \\boxed{{{gold}}} </answer>" if protocol == "tags" else f"\\boxed{{{gold}}}"
        fuzz = example(number, (answer, answer.replace(gold, f"{gold}{gold}")))(fuzz)
    gc.freeze()
    gc.disable()
    try:
        with asyncio.Runner() as runner:
            fuzz()
    finally:
        gc.enable()
        gc.unfreeze()
    print(f"\n{protocol}: {outcomes.total()} turns, {outcomes}; one held the loop for {slowest[0] * 1000:.0f} ms")
    assert outcomes.total() >= num_turns
    assert {*((name, OK) for name in RIGHT), *((name, ERROR) for name in WRONG)} <= set(outcomes)
    assert slowest[0] <= MAX_BLOCKED_S, slowest[1]
