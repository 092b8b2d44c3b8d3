"""What the scripted engine writes in a tool environment: valid calls of its tools, and answers.

It knows no question and learns nothing. Numbers and words come from what it has read, so some calls succeed, some
answers are right, and trees fork.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

#: After a prefix the policy knows at most this many turns, all equally likely.
MAX_TURNS = 6
#: The share of turns that call a tool, and of numbers in calls that were read before.
CALLS, READ_NUMBERS = 0.85, 0.9
#: Texts and numbers come from this many of the last tokens.
NUM_TOKENS = 500
#: Arguments are drawn at most this often until they fit the tool's schema.
MAX_DRAWS = 20
_TAG = re.compile(r"</?\w+>")
_WORD = re.compile(r"\d+(?:\.\d+)?|\w+")
_NUMBER = re.compile(r"\b\d{1,9}\b")
_FORMULA = re.compile(r"[(\d][\d ().]*(?:[-+*/][\d ().]+)+")


class CallingPolicy:
    """Knows up to `MAX_TURNS` turns after a prefix, and writes one of them; at temperature 0 the likeliest.

    Log-probs and entropies are those of this choice, token by token.
    """

    def __init__(self, env: ToolEnv, seed: int):
        self._chat, self._protocol, self._tools, self._seed = env.chat, env.protocol, list(env.tools.values()), seed
        world = env.config.make_world
        self._takes_text = world is not None and (world.sample.takes_text or world.sample.takes_turns)
        self._actions: Sequence[str] = () if world is None else world.sample.text_actions
        self._end = end_of_turn(env.chat) or env.tokenizer.eos_token or ""

    def reply(self, request: GenerationRequest, times_asked: int) -> ScriptedReply:
        prefix = request.prompt_token_ids
        rng = random.Random(f"{self._seed} {prefix}")
        read = _TAG.sub(" ", self._chat.tokenizer.decode(prefix[-NUM_TOKENS:], skip_special_tokens=True))
        texts = [self._turn(read, rng) for _ in range(rng.randint(1, MAX_TURNS))]
        turns = [tuple(self._chat.encode(text).tolist()) for text in texts]
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

    def _turn(self, read: str, rng: random.Random) -> str:
        words = _WORD.findall(read) or ["0"]
        if self._tools and rng.random() < CALLS:
            return self._call(rng.choice(self._tools), read, rng)
        if self._takes_text:
            return f"{rng.choice(self._actions or words)}{self._end}"
        # A late word: the last ones are those of a tool's response, if there was one.
        box = f"\\boxed{{{words[-1 - min(int(rng.expovariate(0.5)), len(words) - 1)]}}}"
        return self._readable(Answer, f"The final answer is {box}.{self._end}", f"<{ANSWER}> {box} </{ANSWER}>")

    def _call(self, tool: Tool, read: str, rng: random.Random) -> str:
        arguments = random_arguments(tool, rng, read)
        bare = json.dumps(arguments, ensure_ascii=False)
        call = f'<{CALL}>\n{{"name": "{tool.name}", "arguments": {bare}}}\n</{CALL}>'
        if len(tool.parameters) < 2 and not isinstance(tool, SchemaTool):
            bare = str(next(iter(arguments.values()), read.split()[-1:]))
        return self._readable(CallRequest, call, f"<{tool.name}> {bare} </{tool.name}>")

    def _readable(self, kind: type, plain: str, tags: str) -> str:
        """The form that the protocol reads as this kind of turn; it may want a thought, or have opened one."""
        turns = [plain, f"</{THINK}>\n{plain}", f"<{THINK}> </{THINK}> {tags}"]
        return next((turn for turn in turns if isinstance(self._protocol.parse(turn), kind)), tags)


def random_arguments(tool: Tool, rng: random.Random, read: str = "") -> dict[str, Any]:
    """Arguments that fit the schema of `tool`, if `MAX_DRAWS` draws find some; `read`: as in `random_value`."""
    arguments: dict[str, Any] = {}
    for _ in range(MAX_DRAWS):
        arguments = random_value(tool.schema(), rng, read)
        with suppress(ToolError):
            tool.check(arguments)
            break
    return arguments


def random_value(
    schema: Mapping[str, Any], rng: random.Random, read: str = "", name: str = "", root: Any = None
) -> Any:
    """A value for a simple JSON schema: of its `enum`, or of its first type.

    Args:
        read: texts and numbers are taken from it.
        name: of the argument; one that is called "code" prints a formula.
        root: the schema in which references are looked up; None: `schema`.
    """
    inner = partial(random_value, rng=rng, read=read, root=root or schema)
    if "$ref" in schema:
        place = schema["$ref"].removeprefix("#/").split("/")
        return inner(reduce(lambda at, key: at[key], place, root or schema), name=name)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return inner(rng.choice(choices), name=name)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        properties = schema.get("properties", {})
        given = [key for key in properties if key in schema.get("required", properties) or rng.random() < 0.5]
        return {key: inner(properties[key], name=key) for key in given}
    if kind == "array":
        return [inner(schema.get("items", {}), name=name) for _ in range(rng.randint(0, 3))]
    number = _number(schema, rng, read)
    values = {"integer": number, "number": float(number), "boolean": bool(number % 2), "null": None}
    return values[kind] if kind in values else _text(name, number, rng, read)


def _number(schema: Mapping[str, Any], rng: random.Random, read: str) -> int:
    low = int(schema.get("minimum", min(0, schema.get("maximum", 0))))
    high = int(schema.get("maximum", low + 9))
    known = [number for number in map(int, _NUMBER.findall(read)) if low <= number <= schema.get("maximum", number)]
    return rng.choice(known) if known and rng.random() < READ_NUMBERS else rng.randint(low, high)


def _text(name: str, number: int, rng: random.Random, read: str) -> str:
    if name == "code":
        return f"print({rng.choice(_FORMULA.findall(read) or [f'{number} * 2']).strip()})"
    words = _WORD.findall(read) or ["text", str(number)]
    begin = rng.randrange(len(words))
    return " ".join(words[begin : begin + rng.randint(1, 3)])
