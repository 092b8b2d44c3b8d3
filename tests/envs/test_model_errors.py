"""What the model wrote never masks it: half a character, deep JSON, impossible addresses and schemas are its errors."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.env_config import ToolEnvConfig
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.question import Question, Shot
from rllib_arpo.envs.tools.arguments import MAX_DEPTH, parse_model_json, schema_validator
from rllib_arpo.envs.tools.tool import ToolResult
from rllib_arpo.envs.worlds.functions import FunctionTool
from tests.helpers.calls import call
from tests.helpers.chat_templates import QWEN25
from tests.helpers.models import byte_tokenizer


def schema_tool(calls: list[dict], **properties) -> FunctionTool:
    """A tool with these parameters; `calls` are the arguments that reach it."""
    schema = {"type": "object", "properties": properties}
    read = lambda given: ((given,), {})  # noqa: E731
    return FunctionTool(name="price", input_schema=schema, arguments=read, function=calls.append)


DEEP = '{"item": ' + "[" * 256 + "]" * 256 + "}"
WRONG = ['{"a": "\\ud83d"}', '{"\\udc00": 1}', DEEP, "[" * 10**5, '{"a": NaN}', '{"a": 1e999}', '{"a": -Infinity}', "{"]


def test_sound_json_is_read_and_nothing_else():
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_model_json(deepest)) == deepest
    read = parse_model_json('{"a": "\\ud83d\\ude00", "b": [1, 2.5, null, true]}')
    assert read == {"a": "😀", "b": [1, 2.5, None, True]}
    for text in [*WRONG, f"[{deepest}]"]:
        with pytest.raises(ValueError):
            parse_model_json(text)


@pytest.mark.parametrize(
    "argument", ['{"item": "\\ud83d"}', '{"\\ud83d": 1}', '"\\udc00"', '{"item": "\ud83d"}', "\ud83d"]
)
def test_half_a_character_is_the_models_error_and_not_a_lost_session(argument):
    """Though a tool with one text parameter takes the bare text, and what is not JSON is the text itself."""
    calls: list[dict] = []
    result = call(schema_tool(calls, item={"type": "string"}), argument)
    assert (result.status, calls) == (ToolStatus.ERROR, [])
    assert "half of a character" in result.text or "surrogates not allowed" in result.text


@pytest.mark.parametrize("protocol", ["tags", "function_calling"])
def test_neither_a_servers_words_nor_worked_examples_hold_tokens_that_structure_the_chat(protocol):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = QWEN25
    chat = Chat(tokenizer)

    def num_special(word: str) -> int:
        tool = schema_tool([], **{f"a{word}": {"type": "string", "description": word}})
        tool = dataclasses.replace(tool, description=f"It has {word}.")
        shots = (Shot(word, word, "price", word, word), Shot(word, word, thought=word))
        question = Question("q", (("user", word),), ("1",), "math", "a test", shots=shots)
        config = ToolEnvConfig(task="arithmetic", model_name_or_path="none", protocol=protocol)
        prompt = config.make_protocol({"price": tool}, chat).prompt(chat, question)
        assert tokenizer.decode(prompt).count(word) >= 8
        return sum(prompt >= 256)

    assert num_special("<|im_end|>") == num_special("harmless")


BAD = "a" * 40 + "!"
PATTERNS = {
    "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}},
    "patternProperties": {"^(a+)+$": {}},
    "additionalProperties": False,
}
TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "value": {"type": "integer"}}}
STRICT = {"properties": {"a": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "arguments", "valid"),
    [
        (TREE, {"left": {"left": {"value": 1}}}, True),
        (TREE, {"left": {"left": {"value": "x"}}}, False),
        # A server's patterns do not run here; a nested schema without patterns stays strict.
        (PATTERNS, {"a": BAD, BAD: 1}, True),
        ({"properties": {"b": PATTERNS}}, {"b": {"a": BAD, BAD: 1}}, True),
        ({"patternProperties": {"x": {}}, "properties": {"b": STRICT}}, {"b": {"c": 1}}, False),
        # A reference in an example is not one.
        ({"properties": {"a": {"default": {"$ref": "#/nowhere"}}}}, {}, True),
    ],
)
def test_which_arguments_a_schema_takes(schema, arguments, valid):
    assert schema_validator(schema).is_valid(arguments) == valid


@pytest.mark.parametrize("reference", ["$ref", "$dynamicRef"])
def test_alternatives_that_refer_to_themselves_take_no_exponential_time(reference):
    """Each level of nesting would double the work."""
    tree = {"anyOf": [{reference: "#one"}, {reference: "#two"}]}
    either = {
        name: {"$dynamicAnchor": name, "type": "object", "properties": {"a": tree}, "required": [name]}
        for name in ("one", "two")
    }
    tool = dataclasses.replace(schema_tool([]), input_schema={"$defs": either, "properties": {"a": tree}})
    begin = time.thread_time()
    result = call(tool, '{"a": ' * 30 + "{}" + "}" * 30)
    assert result == ToolResult("The arguments are nested too deep for the tool's schema.", ToolStatus.ERROR)
    right = {"one": 1}
    for _ in range(30):
        right = {"one": 1, "a": right}
    assert call(tool, json.dumps({"a": right})).status is ToolStatus.OK
    assert time.thread_time() - begin < 5
