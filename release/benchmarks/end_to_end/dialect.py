"""Teaches TRL the task's tags: a chat template, a response template, and the reward of a conversation.

TRL's tool loop reads a turn with the tokenizer's `response_template`, renders a tool's result with its chat template,
and takes the text after the calling message. The templates here read and write `<search> ... </search>` and
`<result> ... </result>` token for token like this package's tag protocol. This module needs neither this package nor
TRL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Generation ends after these texts.
STOP_STRINGS = ("</search>", "</answer>")
RIGHT, WRONG, BAD_FORMAT = 1.0, 0.0, -1.0

#: These go around a model's own chat template, which renders the messages before the assistant's part. The assistant's
#: part is one message in which calls and results follow one another.
_BEFORE = """\
{% set conversation = messages %}\
{% set messages = conversation | rejectattr('role', 'in', ['assistant', 'tool']) | list %}\
{% set add_generation_prompt = add_generation_prompt or conversation | length > messages | length %}"""
_AFTER = """\
{% for message in conversation %}\
{% if message['role'] == 'tool' %}{{ '\\n<result> ' + message['content'] + ' </result>\\n' }}\
{% elif message['role'] == 'assistant' %}{{ message['content'] }}\
{% for call in message['tool_calls'] or [] %}{% set called = call['function'] %}\
{% set text = called['arguments'].get('query', '') if called['name'] == 'search' else called['arguments'] | tojson %}\
{{ '<' + called['name'] + '> ' + text + ' </' + called['name'] + '>' }}\
{% endfor %}{% endif %}{% endfor %}"""

_ANSWER = re.compile(r"[^<]*<answer>([^<]*)</answer>\W*")
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def generation_kwargs(max_turn_tokens: int, *, with_vllm: bool) -> dict[str, Any]:
    """The generation arguments that end a turn after a tag, with transformers' or vLLM's names."""
    if with_vllm:
        return {"max_tokens": max_turn_tokens, "stop": list(STOP_STRINGS), "include_stop_str_in_output": True}
    return {"max_new_tokens": max_turn_tokens, "stop_strings": list(STOP_STRINGS)}


def set_up(tokenizer: Any) -> None:
    """Teaches a tokenizer the tags.

    TRL cuts off what a tool's result adds to a conversation after the calling message's last end-of-sequence token.
    The calling messages here have none, so the tokenizer gets a token that no template writes as its end-of-sequence
    token. The model's configuration keeps its own.
    """
    user = [{"role": "user", "content": ""}]
    without = tokenizer.apply_chat_template(user, tokenize=False)
    header = tokenizer.apply_chat_template(user, tokenize=False, add_generation_prompt=True).removeprefix(without)
    tokenizer.chat_template = _BEFORE + tokenizer.chat_template + _AFTER
    tokenizer.response_template = response_template(header)
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.unk_token or tokenizer.pad_token


def response_template(header: str) -> dict[str, Any]:
    """Reads a turn that begins after `header`, the template's generation prompt, or after a tool's result."""
    call = {"name": "search", "arguments": {"query": "{content}"}}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor_pattern": re.escape(header) + "|</result>\n",
        "fields": {
            "tool_calls": {
                "open": "<search>",
                "close": "</search>",
                "repeats": True,
                "content": "text",
                "transform": {"type": "function", "function": call},
            },
            "content": {"content": "text"},
        },
    }


def reward(completion: Sequence[Mapping[str, Any]], answer: str) -> float:
    """1 for the right answer, 0 for a wrong one, -1 for a bad format, like this package's reward for this task.

    Args:
        completion: the assistant's and the tools' messages in TRL's form.
    """
    *calls, last = [message for message in completion if message["role"] == "assistant"]
    answered = _ANSWER.fullmatch(last["content"])
    if last.get("tool_calls") or not answered or not all(len(turn.get("tool_calls", ())) == 1 for turn in calls):
        return BAD_FORMAT
    boxes = [box.strip() for box in _BOX.findall(answered[1])]
    if len(boxes) != 1 or not boxes[0]:
        return BAD_FORMAT
    return RIGHT if boxes[0] == answer else WRONG
