"""What the scripted engine writes in a tool environment: valid calls of the tools that are there, and answers.

It knows no question and learns nothing. Numbers and words come from what it has read, so some calls succeed, some
answers are right, and trees fork.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_arpo.engine.engine import GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.protocols.protocol import Answer, CallRequest, end_of_turn
from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import ANSWER, CALL, THINK, Tool

if TYPE_CHECKING:
    from rllib_arpo.envs.tool_env import ToolEnv

#: How many turns a prefix has at most, each as likely as the others.
MAX_TURNS = 6
#: The share of turns that call a tool, where there is one.
CALLS = 0.85
#: How many of the tokens that were read last texts and numbers come from.
NUM_TOKENS = 500
#: The share of numbers that were read before.
READ_NUMBERS = 0.9
#: How often arguments are drawn until they fit the tool's schema.
MAX_DRAWS = 20
_TAG = re.compile(r"</?\w+>")
_WORD = re.compile(r"\d+(?:\.\d+)?|\w+")
_FORMULA = re.compile(r"[(\d][\d ().]*(?:[-+*/][\d ().]+)+")
_CLOSES_THOUGHT = f"</{THINK}>\n"


@dataclass(frozen=True, slots=True)
class Read:
    """What arguments and answers are made of: words, whole numbers and formulas of a text."""

    words: Sequence[str] = ()
    numbers: Sequence[int] = ()
    formulas: Sequence[str] = ()

    @classmethod
    def of(cls, text: str) -> Read:
        words = _WORD.findall(text)
        numbers = [int(word) for word in words if word.isdecimal() and len(word) < 10]
        return cls(words or ["0"], numbers, [formula.strip() for formula in _FORMULA.findall(text)])


class CallingPolicy:
    """After a prefix it knows up to `MAX_TURNS` turns, and writes one of them.

    Log-probs and entropies are those of this choice, token by token. At temperature 0 it writes the likeliest turn.
    """

    def __init__(self, env: ToolEnv, seed: int):
        self._chat, self._protocol, self._tools, self._seed = env.chat, env.protocol, list(env.tools.values()), seed
        world = env.config.make_world
        self._takes_text = world is not None and (world.sample.takes_text or world.sample.takes_turns)
        self._actions: Sequence[str] = () if world is None else world.sample.text_actions
        self._end = end_of_turn(env.chat) or env.tokenizer.eos_token or ""

    def reply(self, request: GenerationRequest, times_asked: int) -> ScriptedReply:
        prefix = request.prompt_token_ids
        turns = [tuple(self._chat.encode(turn).tolist()) for turn in self._turns(prefix)]
        draw = times_asked if request.seed is None else request.seed
        chosen = random.Random(f"{self._seed} {draw} {prefix}").choice(turns)
        if request.temperature == 0:
            chosen = Counter(turns).most_common(1)[0][0]
        log_probs, entropies = [], []
        for position, token in enumerate(chosen):
            possible = Counter(turn[position] for turn in turns if turn[:position] == chosen[:position] != turn)
            shares = np.array(list(possible.values())) / possible.total()
            log_probs.append(float(np.log(possible[token] / possible.total())))
            entropies.append(float(-(shares * np.log(shares)).sum()))
        return ScriptedReply(chosen, entropies, log_probs)

    def _turns(self, prefix: Sequence[int]) -> list[str]:
        """The turns that are possible after a prefix, always the same ones."""
        rng = random.Random(f"{self._seed} {prefix}")
        text = self._chat.tokenizer.decode(prefix[-NUM_TOKENS:], skip_special_tokens=True)
        read = Read.of(_TAG.sub(" ", text))
        return [self._turn(read, rng) for _ in range(rng.randint(1, MAX_TURNS))]

    def _turn(self, read: Read, rng: random.Random) -> str:
        if self._tools and rng.random() < CALLS:
            return self._call(rng.choice(self._tools), read, rng)
        if self._takes_text:
            return f"{rng.choice(self._actions or read.words)}{self._end}"
        # A late word: the last ones are those of a tool's response, if there was one.
        text = read.words[-1 - min(int(rng.expovariate(0.5)), len(read.words) - 1)]
        return next(turn for turn in self._answers(text) if isinstance(self._protocol.parse(turn), Answer))

    def _answers(self, text: str) -> Iterator[str]:
        """Forms of an answer; protocols read different ones."""
        box = f"\\boxed{{{text}}}"
        yield f"The final answer is {box}.{self._end}"
        yield f"{_CLOSES_THOUGHT}The final answer is {box}.{self._end}"
        yield f"<{THINK}> </{THINK}> <{ANSWER}> {box} </{ANSWER}>"

    def _call(self, tool: Tool, read: Read, rng: random.Random) -> str:
        arguments = random_arguments(tool, rng, read)
        bare = json.dumps(arguments, ensure_ascii=False)
        if len(tool.parameters) < 2 and not isinstance(tool, SchemaTool):
            bare = str(next(iter(arguments.values()), rng.choice(read.words)))
        call = json.dumps({"name": tool.name, "arguments": arguments}, ensure_ascii=False)
        turns = [
            f"<{THINK}> </{THINK}> <{tool.name}> {bare} </{tool.name}>",
            f"<{CALL}>\n{call}\n</{CALL}>",
            f"{_CLOSES_THOUGHT}<{CALL}>\n{call}\n</{CALL}>",
        ]
        return next((turn for turn in turns if isinstance(self._protocol.parse(turn), CallRequest)), turns[0])


#: Of a caller that has read nothing.
NOTHING = Read()


def random_arguments(tool: Tool, rng: random.Random, read: Read = NOTHING) -> dict[str, Any]:
    """Arguments that fit the schema of `tool`, if `MAX_DRAWS` draws find some."""
    schema = tool.schema()
    arguments: dict[str, Any] = {}
    for _ in range(MAX_DRAWS):
        arguments = random_value(schema, rng, read)
        with suppress(ToolError):
            tool.check(arguments)
            break
    return arguments


def random_value(
    schema: Mapping[str, Any],
    rng: random.Random,
    read: Read = NOTHING,
    name: str = "",
    root: Mapping[str, Any] | None = None,
) -> Any:
    """A value for a simple JSON schema: of its `enum`, or of its first type.

    Args:
        read: texts and numbers are taken from it.
        name: of the argument; one that is called "code" prints a formula.
        root: the schema in which references are looked up; None: `schema`.
    """
    root = schema if root is None else root
    inner = partial(random_value, rng=rng, read=read, root=root)
    if "$ref" in schema:
        return inner(reduce(lambda at, key: at[key], schema["$ref"].removeprefix("#/").split("/"), root), name=name)
    for choices in ("anyOf", "oneOf"):
        if choices in schema:
            return inner(rng.choice(schema[choices]), name=name)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        properties = schema.get("properties", {})
        left_out = {key for key in properties if key not in schema.get("required", properties) and rng.random() < 0.5}
        return {key: inner(properties[key], name=key) for key in properties if key not in left_out}
    if kind == "array":
        return [inner(schema.get("items", {}), name=name) for _ in range(rng.randint(0, 3))]
    number = _number(schema, rng, read)
    values = {"integer": number, "number": float(number), "boolean": bool(number % 2), "null": None}
    return values[kind] if kind in values else _text(name, number, rng, read)


def _number(schema: Mapping[str, Any], rng: random.Random, read: Read) -> int:
    low = int(schema.get("minimum", min(0, schema.get("maximum", 0))))
    high = int(schema.get("maximum", low + 9))
    known = [number for number in read.numbers if low <= number <= (high if "maximum" in schema else number)]
    return rng.choice(known) if known and rng.random() < READ_NUMBERS else rng.randint(low, high)


def _text(name: str, number: int, rng: random.Random, read: Read) -> str:
    if name == "code":
        formulas = read.formulas or [f"{number} {rng.choice('+-*')} {_number({}, rng, read)}"]
        return f"print({rng.choice(formulas)})"
    begin = rng.randrange(max(len(read.words), 1))
    return " ".join(read.words[begin : begin + rng.randint(1, 3)]) or f"text {number}"
