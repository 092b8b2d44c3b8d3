"""Plain classes as worlds: TRL's `environment_factory`."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from rllib_arpo.core.tree import StopReason, ToolStatus
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.tool_env import ToolEnv

SAFE = "tests.helpers.safe:Safe"
ROW = {"prompt": "Open the safe.", "code": "123"}


@pytest.fixture
def started(begun, tmp_path):
    """started(world, ...) -> an environment with this world, whose question is `ROW`."""
    (tmp_path / "safes.jsonl").write_text(json.dumps(ROW))
    task = {"task": "rows", "path": str(tmp_path / "safes.jsonl")}
    return lambda world=SAFE, **env_config: begun(**{**task, "world": world, **env_config})


def test_a_class_of_trl_is_played_and_forked_by_tags(started, turn):
    env = started()
    prompt = env.tokenizer.decode(env._prompt.tolist())
    assert "To use turn (Tries a code), write <turn> digits </turn>." in prompt
    assert prompt.endswith("Open the safe.\n\n It has 3 digits.<|im_end|>\n<|im_start|>assistant\n")
    assert turn(env, "0", "<turn> 103 </turn>")[0] == "\n<result> 2 of 3 are right. </result>\n"
    env.fork_agent("0", "0.0")
    assert turn(env, "0.0", "<turn> 123 </turn>")[0] == "\n<result> 3 of 3 are right. </result>\n"
    for agent, reward in (("0", 0.0), ("0.0", 1.0)):
        _, earned, info, done = turn(env, agent, "<answer> \\boxed{done} </answer>")
        assert (earned, info.accuracy, info.format_valid, done) == (reward, reward, True, True)
    asyncio.run(env.close_question())
    assert turn(started(), "0", "<turn> 123 ")[1] == -1.0
    assert turn(started(reward={"valid_format": 2.0}), "0", "<turn> 123 ")[1] == 0.0


class Meeting:
    """Methods of all kinds, with options."""

    room = property(lambda self: 1 / 0)

    def __init__(self, name: str = "Ada", **others: str):
        self.name, self.others, self.words = name, others, []

    async def reset(self, seed: int) -> str:
        self.words.append(str(seed))
        return "Speak."

    async def say(self, text: str, times: int = 1) -> list[str]:
        await asyncio.sleep(0)
        self.words += [text] * times
        return self.words

    @staticmethod
    def twice(number: int) -> int:
        return 2 * number

    def fail(self) -> None:
        raise KeyError

    def thread(self) -> str:
        return str(threading.current_thread() is threading.main_thread())

    def who(self) -> str:
        return f"{self.name} {self.others}"

    def _hidden(self) -> str:
        return "never"

    async def get_reward(self) -> float:
        return len(self.words) / 2


def test_methods_of_all_kinds_are_called(begun, turn):
    def said(env, name: str, argument: str = "{}") -> tuple[str, ToolStatus]:
        text, _, info, _ = turn(env, "0", f"<{name}> {argument} </{name}>")
        return text.strip().removeprefix("<result> ").removesuffix(" </result>"), info.tool_call.status

    env = begun(world={Meeting: {"name": "Eve", "to": "Bob"}}, max_tool_calls=9)
    assert list(env.tools) == ["fail", "say", "thread", "twice", "who"]
    assert said(env, "say", '{"text": "hello", "times": 2}') == ("['0', 'hello', 'hello']", ToolStatus.OK)
    assert said(env, "twice", '{"number": 4}') == ("8", ToolStatus.OK)
    assert said(env, "who") == ("Eve {'to': 'Bob'}", ToolStatus.OK)
    assert said(env, "thread") == ("True", ToolStatus.OK)
    assert said(env, "fail") == ("KeyError", ToolStatus.ERROR)
    assert said(env, "say", "{}") == ("say: wrong arguments: 'text' is a required property.", ToolStatus.ERROR)
    _, reward, info, _ = turn(env, "0", "<answer> \\boxed{} </answer>")
    # The reward is what the class says, the accuracy at most 1.
    assert (reward, info.accuracy, info.stop_reason) == (1.5, 1.0, StopReason.ANSWER)
    assert said(begun(world={Meeting: {"blocking": True}}), "thread") == ("False", ToolStatus.OK)


class Unscored:
    def reset(self, **row) -> None:
        row["prompt"] = "mine"

    def look(self) -> str:
        return "nothing"


def test_a_class_without_get_reward_leaves_it_to_the_answer(begun, started, turn, tmp_path):
    (tmp_path / "answered.jsonl").write_text(json.dumps({**ROW, "answer": 123}))
    env = started(Unscored, path=str(tmp_path / "answered.jsonl"))
    assert turn(env, "0", "<answer> \\boxed{123} </answer>")[1] == 1.0
    assert env.question.row["prompt"] == ROW["prompt"]
    with pytest.raises(DataError, match=r"safes\.jsonl, row 0: no right answer, and Unscored has no `get_reward`\.$"):
        started(Unscored)
    with pytest.raises(DataError, match=r"^seed 0: Safe\.reset does not take this row: missing a required argument"):
        begun(world=SAFE)


async def test_a_configuration_is_tried_once_on_its_first_row_also_within_a_running_loop(tokenizer_folder):
    seen: list[object] = []

    class Counting:
        def reset(self, seed: int) -> str:
            seen.append(seed)
            return "Count."

        def get_reward(self) -> float:
            return 0.0

    async def own(path) -> float:
        seen.append((path.format_valid, path.answer, path.accuracy))
        return 0.0

    model = {"model_name_or_path": tokenizer_folder}
    ToolEnv.validate_config({**model, "world": Counting, "reward": {own: 1.0, "valid_format": 1.0}})
    ToolEnv.validate_config({**model, "task": "arithmetic", "reward": own})
    assert seen == [0, (True, "", 0.0), (True, "5710", 1.0)]
