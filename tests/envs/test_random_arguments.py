"""Random arguments fit the tool's schema, and come from what was read."""

import random

import jsonschema
import pydantic
import pytest

from rllib_arpo.envs.tools.random_arguments import random_value

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": ["integer", "null"], "minimum": 5, "maximum": 6},
        "b": {"type": "array", "items": {"type": "number"}},
        "c": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "d": {},
        "e": {"$ref": "#/$defs/size"},
        "f": {"type": "string"},
        "g": {"type": "number", "minimum": 0.1, "maximum": 0.9},
        "h": {"type": "integer", "minimum": 1.5},
        "i": {"const": "fast", "type": "string"},
    },
    "required": [*"abcdeghi"],
    "$defs": {"size": {"enum": ["S", "M"]}},
}


@pytest.mark.parametrize("read", ["", "Take 5 of 600 lamps."])
def test_random_arguments_fit_their_schema(read):
    drawn = [random_value(SCHEMA, random.Random(seed), read) for seed in range(50)]
    for value in drawn:
        jsonschema.validate(value, SCHEMA)
    assert {"f" in value for value in drawn} == {True, False}


def test_numbers_words_and_formulas_come_from_what_was_read():
    read = "What is 86 * 67 - 52? Ask the 3 clerks."
    rng = random.Random(0)
    assert random_value({"type": "string"}, rng, read, "code") == "print(86 * 67 - 52)"
    assert {random_value({"type": "integer", "maximum": 60}, rng, read) for _ in range(200)} >= {52, 3}
    assert random_value({"type": "string"}, rng, "lamp") == "lamp"


class Node(pydantic.BaseModel):
    children: list["Node"]
    after: "Node | None"


@pytest.mark.parametrize(
    "schema", [Node.model_json_schema(), {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}]
)
def test_schemas_that_refer_to_themselves_come_to_an_end(schema):
    drawn = [random_value(schema, random.Random(seed)) for seed in range(50)]
    for value in drawn:
        jsonschema.validate(value, schema)
    assert any(drawn)
    assert random_value(Node.model_json_schema(), random.Random(0), depth=2) == {"children": [], "after": None}
