"""Tools of users, by "module:Class"."""

from __future__ import annotations

import asyncio

import pytest

from rllib_arpo.envs.tool_env import ToolEnv
from tests.helpers.own_tool import TallyTool

TALLY = "tests.helpers.own_tool:TallyTool"


def make_env(model_folder: str, tools) -> ToolEnv:
    return ToolEnv({"model_name_or_path": model_folder, "task": "arithmetic", "tools": tools})


def call(env: ToolEnv, agent_id: str, text: str) -> str:
    tokens = env.tokenizer.encode(f"<tally>{text}</tally>", add_special_tokens=False)
    observation, *_ = asyncio.run(env.step_agent(agent_id, tokens))
    return env.tokenizer.decode(observation).strip()


@pytest.mark.parametrize("tool", [TALLY, TallyTool])
def test_a_tool_of_ones_own_answers_with_its_options(model_folder, tool):
    env = make_env(model_folder, {tool: {"unit": "signs"}, "python": {}})
    assert list(env.tools) == ["tally", "python"]
    env.reset(options={"question": 0})
    assert call(env, "0", "abc") == "<result> 3 signs </result>"


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (["taly"], r"^Unknown tool 'taly': known: browse, mcp, python, search\.$"),
        (["nowhere:Tool"], r"^env_config\['tools'\]: 'nowhere:Tool' cannot be imported \(No module named 'nowhere'\)"),
        (["tests.helpers.own_tool:Tally"], r"^env_config\['tools'\]: .* cannot be imported \(module .* has no attrib"),
        (["tests.helpers.own_tool:AnswerTool"], r"AnswerTool' needs a `name` that neither a tool nor a tag has\.$"),
        (["tests.helpers.own_tool:OtherPythonTool"], r"PythonTool' needs a `name` that neither a tool nor a tag has"),
        ("python", r"^env_config\['tools'\] must be a list of tools, or an object: tool -> options, not 'python'\.$"),
        ({TALLY: {"units": "notes"}}, rf"^Unknown option of the tool '{TALLY}' 'units': did you mean 'unit'\?$"),
    ],
)
def test_a_wrong_name_is_one_sentence(model_folder, tools, message):
    with pytest.raises(ValueError, match=message):
        make_env(model_folder, tools)
