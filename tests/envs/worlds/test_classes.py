"""Plain classes as worlds: TRL's `environment_factory`."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.worlds import Call, Reply
from tests.helpers.far_worlds import Shop
from tests.helpers.worlds import QUESTION, far, trunk_of

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


@pytest.mark.parametrize("world", [{Shop: {"sign": "corner"}}, far("Shop", sign="corner")], ids=["here", "far"])
async def test_public_methods_of_all_kinds_are_tools(world):
    play = trunk_of(world)
    tools = (await play.ready()).tools
    calls = [
        (Call("buy", {"item": "tea", "number": 3}), Reply("3 items")),
        (Call("hours", {}), Reply("(9, 17, True)")),
        (Call("score", {"item": "tea"}), Reply("tea: 7 of 10")),
        (Call("close", {"door": "front"}), Reply("front is closed")),
        (Call("buy", {"item": "air"}), Reply("no air here", status=ToolStatus.ERROR)),
        (Call("buy", {"item": "nothing"}), Reply("KeyError", status=ToolStatus.ERROR)),
    ]
    assert [await play.act(call) for call, _ in calls] == [reply for _, reply in calls]
    assert play.opening == "corner 1"
    assert await play.score(FinishedPath(QUESTION, (), False)) is None
    assert await play.score(FinishedPath(QUESTION, (), True)) == Score(1.5, 1.0)
    shown = {name: (tool.get("required", []), [*tool["properties"]]) for name, tool in tools.items()}
    one = {name: ([key], [key]) for name, key in (("close", "door"), ("score", "item"))}
    assert shown == {"buy": (["item"], ["item", "number"]), "hours": ([], []), **one}
    kinds = {name: schema["type"] for name, schema in tools["buy"]["properties"].items()}
    assert kinds == {"item": "string", "number": "integer"}
    assert tools["buy"]["description"] == "Puts an item into the basket."


async def test_methods_that_block_run_in_threads():
    class Threads(Shop):
        def hours(self) -> bool:
            return threading.current_thread() is threading.main_thread()

    for blocking in (True, False):
        reply = await trunk_of({Threads: {"blocking": blocking}}).act(Call("hours", {}))
        assert reply.text == str(not blocking)


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
