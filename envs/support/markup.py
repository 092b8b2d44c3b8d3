"""The names of the tags that protocols read and write, apart from those of tools."""

from __future__ import annotations

THINK = "think"
#: Tags of the tag protocol: a tool's answer, and the model's.
RESULT, ANSWER = "result", "answer"
#: Tags of native function calling: a call, a tool's answer, and the list of the tools.
CALL, RESPONSE, TOOLS = "tool_call", "tool_response", "tools"
#: No tool can have one of these names.
RESERVED_NAMES = frozenset({THINK, RESULT, ANSWER, CALL, RESPONSE, TOOLS})
