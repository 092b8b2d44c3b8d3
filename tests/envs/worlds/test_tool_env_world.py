"""A `ToolEnv` that drives a world: prompt, turns, ends, scores, forks that are refused."""

from __future__ import annotations

import itertools
import json

import pytest

from rllib_arpo.core.tree import StopReason, ToolStatus
from rllib_arpo.envs.errors import ContractError, DataError, ForkRefused, ToolError
from rllib_arpo.envs.rewards import Score
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.worlds import Opening, Reply, World, WorldLost
from tests.envs.test_tool_env import NotebookTool
from tests.helpers.chat_templates import calling_folder
from tests.helpers.worlds import Drifting, Faults, Replayed

ADD = {
    "type": "object",
    "description": "Adds a number.",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
}


class Sum(World):
    """Adds up numbers, as calls or as texts."""

    tools = {"add": ADD}  # noqa: RUF012
    takes_text = True
    instruction = ""

    def __init__(self, goal: int = 10):
        self.goal, self.total = goal, 0

    async def reset(self, question):
        self.total = question.row["seed"]
        return f"Make {self.goal} of {self.total}."

    async def act(self, action):
        if isinstance(action, str) and not action.isdecimal():
            raise ToolError("Write a number.")
        self.total += int(action) if isinstance(action, str) else action.arguments["number"]
        return Reply(str(self.total), reward=0.25, done=self.total >= self.goal)


class Scored(Sum):
    """Scores the sum itself, and takes no texts."""

    takes_text = False

    async def score(self, path):
        return Score(1.0, 0.5) if path.format_valid else None


def prompt_of(env: ToolEnv) -> str:
    return env.tokenizer.decode(env._prompt)


#: Protocol -> a call as the model writes it, and the result as it reads it.
WRITTEN = {
    "tags": ('<add> {"number": 3} </add>', "\n<result> 5 </result>\n"),
    "function_calling": (
        '<tool_call>{"name": "add", "arguments": {"number": 3}}</tool_call>',
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
}


@pytest.mark.parametrize("protocol", WRITTEN)
def test_texts_and_calls_are_actions_and_their_replies_are_framed(begun, turn, tmp_path, protocol):
    env = begun(1, world=Sum, protocol=protocol, model_name_or_path=calling_folder(tmp_path), max_tool_calls=4)
    assert prompt_of(env).endswith("<|im_start|>user\nMake 10 of 2.<|im_end|>\n<|im_start|>assistant\n")
    call, result = WRITTEN[protocol]
    text, reward, info, done = turn(env, "0", call)
    assert (text, reward, info.tool_call.name, done) == (result, 0.25, "add", False)
    text, reward, info, done = turn(env, "0", "<think> one </think> 1<|im_end|>")
    assert (text, reward, done) == ("\n<|im_start|>user\n6<|im_end|>\n<|im_start|>assistant\n", 0.25, False)
    assert (info.tool_call.name, info.tool_call.argument) == ("text", "1")
    text, reward, info, done = turn(env, "0", "many")
    assert text == "<|im_end|>\n<|im_start|>user\nWrite a number.<|im_end|>\n<|im_start|>assistant\n"
    assert (reward, info.tool_call.status, done) == (0.0, ToolStatus.ERROR, False)
    text, reward, info, done = turn(env, "0", "4")
    # Without a score only the replies pay; their sum is the accuracy.
    assert (text, reward, info.stop_reason, info.accuracy, done) == ("", 0.25, StopReason.WORLD_ENDED, 0.75, True)


class Talking(World):
    """Takes turns: the first is an error, the second dies, the others are followed by turn 9."""

    takes_turns = True
    begun = itertools.count()

    async def reset(self, question):
        return Opening(({"role": "user", "content": f"Begin, {next(self.begun)}."},))

    async def act(self, action):
        if action.text == "no":
            raise ToolError("That is no number.")
        if action.text == "die":
            raise WorldLost("killed")
        return Reply("", messages=({"role": "user", "content": "On."},), follows=9)


def test_of_a_world_that_takes_turns_errors_are_read_and_what_it_must_not_do_is_told(begun, turn, tmp_path):
    env = begun(num_roots=2, world=Talking, protocol="function_calling", model_name_or_path=calling_folder(tmp_path))
    text, _, info, _ = turn(env, "0", "no<|im_end|>")
    assert text == "\n<|im_start|>user\nThat is no number.<|im_end|>\n<|im_start|>assistant\n"
    assert info.tool_call.status == ToolStatus.ERROR
    with pytest.raises(ContractError, match=r"^A reply after 2 turns follows turn 9\.$"):
        turn(env, "0", "yes<|im_end|>")
    # It begins otherwise each time: what was said cannot be repeated, nor said to another beginning.
    assert turn(env, "1", "die<|im_end|>")[2].stop_reason == StopReason.BROKEN_TOOL


def test_a_world_may_score_and_a_plain_turn_ends_one_that_takes_no_texts(begun, turn):
    env = begun(num_roots=2, world=Scored)
    text, reward, info, done = turn(env, "0", "That is it.<|im_end|>")
    assert (text, reward, info.stop_reason, info.accuracy, info.format_valid, done) == (
        "", 1.0, StopReason.ANSWER, 0.5, True, True,
    )  # fmt: skip
    # Bad format: this world leaves that to the configured reward.
    _, reward, info, _ = turn(env, "1", "<think> <add> 1 </add>")
    assert (reward, info.stop_reason, info.format_valid) == (-1.0, StopReason.MALFORMED_CALL, False)


@pytest.mark.parametrize("first", ["1", "<answer> \\boxed{1} </answer>"])
def test_a_fork_that_is_not_its_parent_is_refused_in_its_first_turn(begun, turn, first):
    env = begun(world=Drifting)
    turn(env, "0", "1")
    env.fork_agent("0", "0.0")
    with pytest.raises(ForkRefused, match=r"cannot be repeated: turn 1, 1, got 'world \d+ .*' in place of 'world \d+ "):
        turn(env, "0.0", first)
    assert turn(env, "0", "1")[3] is False
    env = begun(world={Replayed: {"faults": Faults(act=[None, KeyError("a bug")])}})
    turn(env, "0", "1")
    env.fork_agent("0", "0.0")
    with pytest.raises(ForkRefused, match=r"^KeyError: 'a bug'$"):
        turn(env, "0.0", first)


def test_a_fork_whose_first_call_a_limit_refuses_is_refused_in_that_turn(begun, turn, monkeypatch):
    class DriftingTool(NotebookTool):
        name = "drift"
        make_world = Drifting

    monkeypatch.setattr(Drifting, "reset", World.reset)
    env = begun(tools=[DriftingTool], max_tool_calls=4, max_calls_per_tool={"drift": 1})
    turn(env, "0", "<drift> a </drift>")
    env.fork_agent("0", "0.0")
    with pytest.raises(ForkRefused, match="cannot be repeated"):
        turn(env, "0.0", "<drift> b </drift>")


def test_what_a_world_says_first_is_a_users_message(begun, tmp_path):
    class Briefed(Sum):
        async def reset(self, question):
            return "half \ud83d"

    rows = tmp_path / "rows.jsonl"
    asked = [{"role": "user", "content": "Ask."}, {"role": "assistant", "content": "Hm."}]
    rows.write_text(json.dumps({"prompt": asked, "answer": "1"}))
    prompt = prompt_of(begun(world=Briefed, task="rows", path=str(rows)))
    assert "Hm.<|im_end|>\n<|im_start|>user\nhalf \ufffd<|im_end|>" in prompt
    Briefed.reset = World.reset
    with pytest.raises(
        DataError, match=r"row 0: the prompt ends with a message of the assistant, who begins a new one\.$"
    ):
        begun(world=Briefed, task="rows", path=str(rows))
    with pytest.raises(DataError, match=r"^seed 2: neither the task nor the world asks anything\.$"):
        begun(1, world=Briefed)


@pytest.mark.parametrize(("answer", "accuracy"), [("16/2", 0.0), ("8", 1.0)])
def test_an_answer_is_compared_with_what_the_world_asks(begun, turn, tmp_path, answer, accuracy):
    class Asking(Scored):
        score = World.score

        async def reset(self, question):
            return "Reduce 16/2."

    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"seed": 2, "answer": "8", "ability": "math"}))
    env = begun(world=Asking, task="rows", path=str(rows))
    assert turn(env, "0", f"<answer> \\boxed{{{answer}}} </answer>")[2].accuracy == accuracy


def test_a_text_that_fills_the_limit_of_tokens_ends_a_trajectory(begun, turn):
    env = begun(world=Sum, max_response_tokens=60)
    assert turn(env, "0", "1" * 60)[2].stop_reason == StopReason.TOKEN_LIMIT
