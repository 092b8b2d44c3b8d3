import asyncio
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from ray.rllib.env.env_context import EnvContext
from ray.rllib.utils.pre_checks.env import check_multiagent_environments

from rllib_arpo.core.tree import MASKED_STOP_REASONS, OUTAGE_STOP_REASONS, StopReason
from rllib_arpo.envs.errors import BrokenToolError, UnreadVerdict
from rllib_arpo.envs.forkable_env import INFO_STEP, OPTION_NUM_ROOTS, OPTION_QUESTION
from rllib_arpo.envs.registry import make_tool_env
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.tools.tool import Tool, ToolResult
from rllib_arpo.envs.worlds import Call, Reply, World


class Notebook(World):
    """Remembers what was written on this path; shows all of it."""

    def __init__(self):
        self.lines = []

    async def act(self, action):
        if action.arguments["text"] == "broken":
            raise BrokenToolError("no ink")
        if action.tool == "erase":
            return Reply(f"{len(self.lines)} erased")
        self.lines.append(action.arguments["text"])
        return Reply(" ".join(self.lines))


@dataclass(frozen=True, kw_only=True)
class NotebookTool(Tool):
    name: ClassVar[str] = "note"
    timeout_s: float = 5.0
    max_result_tokens: int = 1000
    make_world = Notebook

    def as_call(self, argument):
        return Call(self.name, {"text": argument})

    async def __call__(self, argument):
        raise AssertionError("it acts in a world")


NOTEBOOK = {NotebookTool: {}}


def note(text: str) -> str:
    return f"<note> {text} </note>"


def start(env, question: int = 0, num_roots: int = 1):
    return env.reset(options={OPTION_QUESTION: question, OPTION_NUM_ROOTS: num_roots})


def text_of(env, token_ids) -> str:
    return env.tokenizer.decode(list(token_ids))


def test_a_tool_has_a_limit_of_its_own_and_forks_inherit_its_count(begun, turn):
    env = begun(tools={**NOTEBOOK, "python": {}}, max_tool_calls=4, max_calls_per_tool={"note": 2})
    turn(env, "0", note("a"))
    env.fork_agent("0", "0.0")
    assert turn(env, "0", note("b"))[0] == "\n<result> a b </result>\n"
    refused = "\n<result> The limit of 2 calls of note is reached. You cannot use note any more. </result>\n"
    response, reward, info, done = turn(env, "0", note("c"))
    assert (response, reward, info.tool_call, done) == (refused, 0.0, None, False)
    assert turn(env, "0.0", note("x"))[0] == "\n<result> a x </result>\n"
    assert turn(env, "0.0", note("y"))[0] == refused
    # A refused call is not executed, so it does not count: two calls of the other tool are left.
    assert turn(env, "0", "<python> print(1) </python>")[0] == "\n<result> 1 </result>\n"
    assert turn(env, "0", "<python> print(2) </python>")[0] == "\n<result> 2 </result>\n"
    assert turn(env, "0", note("d"))[2].stop_reason == StopReason.TOOL_CALL_LIMIT


@pytest.mark.parametrize(
    ("error", "reason"),
    [(BrokenToolError("the judge is away"), StopReason.BROKEN_TOOL), (UnreadVerdict("hm"), StopReason.UNREAD_VERDICT)],
)
def test_a_broken_tool_or_reward_ends_the_trajectory_and_no_other(begun, turn, error, reason):
    async def raising(path):
        raise error

    env = begun(num_roots=3, tools=NOTEBOOK, reward=raising)
    _, reward, info, done = turn(env, "0", note("broken"))
    assert (reward, info.stop_reason, info.tool_call.name, done) == (0.0, StopReason.BROKEN_TOOL, "note", True)
    assert (str(info.error), info.error.__notes__) == ("no ink", ["tool: note"])
    _, reward, info, done = turn(env, "1", f"<answer> \\boxed{{{env.question.answers[0]}}} </answer>")
    assert (reward, info.stop_reason, info.accuracy, done, info.error) == (0.0, reason, 0.0, True, error)
    assert reason in MASKED_STOP_REASONS & OUTAGE_STOP_REASONS
    assert turn(env, "2", note("a"))[3] is False


@pytest.mark.parametrize(
    ("limit", "text", "reward", "reason"),
    [
        (10, "0123456789", -1.0, StopReason.TOKEN_LIMIT),
        (11, "0123456789", -1.0, StopReason.NO_ANSWER),
        (10, "<note> abc", -1.0, StopReason.TOKEN_LIMIT),
        # The call has 17 tokens, its response 24: one more must fit.
        (42, "<note> abc </note>", -1.0, StopReason.TOKEN_LIMIT),
        (43, "<note> abc </note>", 0.0, None),
        (29, "<answer> \\boxed{-1} </answer>", 0.0, StopReason.ANSWER),
        (28, "<answer> \\boxed{-1} </answer>", -1.0, StopReason.TOKEN_LIMIT),
        (22, "<answer> 84 </answer>", -1.0, StopReason.ANSWER),
        (21, "<answer> 84 </answer>", -1.0, StopReason.TOKEN_LIMIT),
        (99, "I do not know.<|im_end|>", -1.0, StopReason.NO_ANSWER),
        (99, "<think> <search> lamp </search>", -1.0, StopReason.MALFORMED_CALL),
    ],
)
@pytest.mark.parametrize("by_context", [False, True])
def test_how_a_turn_ends_a_trajectory(begun, turn, limit, text, reward, reason, by_context):
    prompt_tokens = len(begun(tools=NOTEBOOK)._prompt)
    limits = {"max_context_tokens": prompt_tokens + limit} if by_context else {"max_response_tokens": limit}
    env = begun(tools=NOTEBOOK, **limits)
    response, got, info, done = turn(env, "0", text)
    assert (got, info.stop_reason, done) == (reward, reason, reason is not None)
    assert response == ("" if reason else "\n<result> abc </result>\n")
    if done:
        with pytest.raises(ValueError, match=r"^Agent '0' has ended\.$"):
            turn(env, "0", "")


@pytest.mark.parametrize("limit", [42, 43])
def test_a_call_counts_whether_or_not_its_response_leaves_room(begun, turn, limit):
    env = begun(tools=NOTEBOOK, max_response_tokens=limit, reward=lambda path: float(path.num_tool_calls))
    _, reward, info, done = turn(env, "0", "<note> abc </note>")
    if not done:
        _, reward, info, done = turn(env, "0", "x")
    assert (reward, info.stop_reason) == (1.0, StopReason.TOKEN_LIMIT)


@pytest.mark.parametrize(
    ("limits", "texts", "reason"),
    [
        ({"max_turn_tokens": 5}, ["abcde"], StopReason.TOKEN_LIMIT),
        ({"max_turn_tokens": 5}, ["abcd"], StopReason.NO_ANSWER),
        # The last token that is allowed ends the turn.
        ({"max_turn_tokens": 5}, ["abcd<|im_end|>"], StopReason.NO_ANSWER),
        ({"max_response_tokens": 5}, ["abcd<|im_end|>"], StopReason.NO_ANSWER),
        ({"max_turn_tokens": 5}, ["abcd<|im_start|>"], StopReason.TOKEN_LIMIT),
        # A refusal leaves no room for a further token.
        ({"max_calls_per_tool": {"note": 1}, "max_response_tokens": 120}, [note("a"), note("b")],
         StopReason.TOKEN_LIMIT),
    ],
)  # fmt: skip
def test_other_limits(begun, turn, limits, texts, reason):
    env = begun(tools=NOTEBOOK, **limits)
    for text in texts:
        response, reward, info, done = turn(env, "0", text)
    assert (response, reward, info.stop_reason, done) == ("", -1.0, reason, True)


def test_a_plain_rllib_loop(make_tool_env):
    env = make_tool_env(task="arithmetic")
    check_multiagent_environments(env)
    observations, infos = env.reset(seed=3, options={OPTION_NUM_ROOTS: 2})
    assert set(observations) == set(infos) == set(env.agents) == {"0", "1"}

    def act(texts):
        return env.step({agent: np.asarray(env.tokenizer.encode(text), np.int32) for agent, text in texts.items()})

    observations, rewards, terminateds, truncateds, infos = act({"0": "<python> 6 * 7 </python>", "1": "no tags"})
    assert text_of(env, observations["0"]) == "\n<result> 42 </result>\n"
    assert rewards == {"0": 0.0, "1": -1.0}
    assert terminateds == {"0": False, "1": True, "__all__": False}
    assert infos["1"][INFO_STEP].stop_reason == StopReason.NO_ANSWER
    answer = f"<answer> \\boxed{{{env.question.answers[0]}}} </answer>"
    observations, rewards, terminateds, truncateds, infos = act({"0": answer})
    assert rewards == {"0": 1.0}
    assert terminateds == {"0": True, "__all__": True}
    assert truncateds == {"0": False, "__all__": False}


def test_plain_rllib_runners_ask_different_questions(tokenizer_folder):
    def asked(**context) -> list[str]:
        env = make_tool_env("ToolMath-v0", EnvContext({"model_name_or_path": tokenizer_folder}, **context))
        return [env.reset()[1]["0"]["question_id"] for _ in range(6 // context.get("num_workers", 1))]

    alone = asked(worker_index=0)
    assert [asked(worker_index=number, num_workers=2) for number in (1, 2)] == [alone[0::2], alone[1::2]]
    assert len(set(alone)) == 6


def test_tools_of_several_agents_run_at_once(begun):
    @dataclass(frozen=True, kw_only=True)
    class MeetingTool(NotebookTool):
        """Returns when the other agent has also called."""

        make_world = None

        async def __call__(self, argument):
            arrived.append(argument)
            while len(arrived) < 2:
                await asyncio.sleep(0.001)
            return ToolResult("met")

    arrived = []
    env = begun(num_roots=2, tools=[MeetingTool])
    action = np.asarray(env.tokenizer.encode(note("a")), np.int32)
    observations, *_ = env.step({"0": action, "1": action})
    assert {text_of(env, o) for o in observations.values()} == {"\n<result> met </result>\n"}


def test_tools_may_share_a_world_which_is_closed_with_the_question(begun, turn, monkeypatch):
    class Closing(Notebook):
        async def close(self):
            closed.append(list(self.lines))

    class SharingTool(NotebookTool):
        make_world = Closing

    class EraserTool(SharingTool):
        name = "erase"

    closed = []
    env = begun(tools=[SharingTool, EraserTool])
    turn(env, "0", note("a"))
    env.fork_agent("0", "0.0")
    assert turn(env, "0", "<erase> all </erase>")[0] == "\n<result> 1 erased </result>\n"
    assert turn(env, "0.0", note("b"))[0] == "\n<result> a b </result>\n"
    assert closed == []
    asyncio.run(env.close_question())
    # Those of the trajectories; then the copy is checked in others.
    assert sorted(closed[:2]) == [["a"], ["a", "b"]]
    # A question that cannot be made leaves nothing of the one before.
    before = list(closed)
    monkeypatch.setattr(type(env.task), "question", lambda *_args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        env.reset()
    asyncio.run(env.close_question())
    assert closed == before


def test_another_environment_shares_what_never_changes(begun):
    env = begun(3, tools=NOTEBOOK)
    other = env.another()
    assert (other.task, other.tools, other.chat) == (env.task, env.tools, env.chat)
    assert (other.question, other.agents) == (None, [])
    # A subclass may have a state of its own.
    env.__class__ = type("CountingEnv", (ToolEnv,), {})
    assert env.another() is None
