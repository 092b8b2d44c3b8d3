"""Tools of users, by "module:Class"."""

from __future__ import annotations

import pytest

from tests.helpers.own_tool import TallyTool

TALLY = "tests.helpers.own_tool:TallyTool"


@pytest.mark.parametrize("tool", [TALLY, TallyTool])
def test_a_tool_of_ones_own_answers_with_its_options(begun, turn, tool):
    env = begun(tools={tool: {"unit": "signs"}, "python": {}})
    assert list(env.tools) == ["tally", "python"]
    assert turn(env, "0", "<tally>abc</tally>")[0] == "\n<result> 3 signs </result>\n"


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
def test_a_wrong_name_is_one_sentence(make_tool_env, tools, message):
    with pytest.raises(ValueError, match=message):
        make_tool_env(tools=tools)
