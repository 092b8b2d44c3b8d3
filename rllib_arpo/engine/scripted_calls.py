"""What the scripted engine writes in a tool environment: valid calls of its tools, and answers.

It knows no question and learns nothing. Numbers and words come from what it has read, so some calls succeed, some
answers are right, and trees fork.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rllib_arpo.engine.engine import GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.protocols.protocol import Answer, CallRequest, end_of_turn
from rllib_arpo.envs.tools.random_arguments import WORD, random_arguments
from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import ANSWER, CALL, THINK, Tool

if TYPE_CHECKING:
    from rllib_arpo.envs.tool_env import ToolEnv

#: After a prefix the policy knows at most this many turns, all equally likely.
MAX_TURNS = 6
#: The share of turns that call a tool.
CALLS = 0.85
#: Texts and numbers come from this many of the last tokens.
NUM_TOKENS = 500
_TAG = re.compile(r"</?\w+>")


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
        words = WORD.findall(read) or ["0"]
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
