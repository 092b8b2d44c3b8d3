"""The protocols in which a model calls tools and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rllib_arpo.envs.protocols.function_calling import function_calling
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import Protocol
from rllib_arpo.envs.protocols.tags import STANDARD_TOOLS, TagProtocol
from rllib_arpo.envs.tools.tool import Tool


def tags(tools: Mapping[str, Tool], chat: Chat, require_thought: bool = False) -> TagProtocol:
    """The paper's tags: the standard ones and those of further tools."""
    return TagProtocol(tuple(dict.fromkeys((*STANDARD_TOOLS, *tools))), tools, require_thought)


#: Name -> protocol for these tools and this chat template. Raises a ValueError if the template does not suit.
PROTOCOLS: dict[str, Callable[[Mapping[str, Tool], Chat], Protocol]] = {
    "tags": tags,
    "tags_with_thought": partial(tags, require_thought=True),
    "function_calling": function_calling,
}
