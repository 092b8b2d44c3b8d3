"""What the scripted engine writes in a tool environment: valid calls of its tools, and answers.

It knows no question and learns nothing. Numbers and words come from what it has read, so some calls succeed, some
answers are right, and trees fork.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from rllib_arpo.engine.engine import GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.protocols.protocol import end_of_turn
from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.tools.random_arguments import WORD, random_arguments
from rllib_arpo.envs.tools.tool import ANSWER, THINK

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

    For an agent on an endpoint it writes words and calls no tools, since only the agent knows them.
    Log-probs and entropies are those of this choice, token by token.
    """

    def __init__(self, env: ToolEnv, seed: int):
        self._chat, self._protocol, self._tools, self._seed = env.chat, env.protocol, list(env.tools.values()), seed
        world = env.config.make_world
        self._takes_text = world is not None and (world.sample.takes_text or world.sample.takes_turns)
        self._actions: Sequence[str] = () if world is None else world.sample.text_actions
        #: Before the tags of a turn, which may want a thought.
        self._thought = f"<{THINK}> </{THINK}> " if isinstance(env.protocol, TagProtocol) else ""
        self._end = end_of_turn(env.chat) or env.tokenizer.eos_token or ""

    def reply(self, request: GenerationRequest, times_asked: int) -> ScriptedReply:
        prefix = request.prompt_token_ids
        rng = random.Random(f"{self._seed} {prefix}")
        read = _TAG.sub(" ", self._chat.tokenizer.decode(prefix[-NUM_TOKENS:], skip_special_tokens=True))
        # The template may have opened a thought.
        close = f"</{THINK}>\n" if self._chat.turn_text(np.array(prefix), np.array([])) else ""
        texts = [close + self._turn(read, rng) for _ in range(rng.randint(1, MAX_TURNS))]
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
            tool = rng.choice(self._tools)
            # No draw may fit the tool's schema.
            with suppress(ToolError, ValueError):
                return self._thought + self._protocol.turn(self._chat, "", tool.name, random_arguments(tool, rng, read))
        if self._takes_text:
            return f"{rng.choice(self._actions or words)}{self._end}"
        # A late word: the last ones are those of a tool's response, if there was one.
        box = f"\\boxed{{{words[-1 - min(int(rng.expovariate(0.5)), len(words) - 1)]}}}"
        if self._thought:
            return f"{self._thought}<{ANSWER}> {box} </{ANSWER}>"
        return f"The final answer is {box}.{self._end}"
