"""Between text and tokens: the prompt, and the text of a turn. Sampled tokens are never tokenised again."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.envs.support.texts import first_line

PLAIN_NAMES = {"user": "Question", "assistant": "Answer"}
#: A Unicode noncharacter, which occurs in no text; no token may reach across it.
CUT = "\ufdd0"

#: A message for chat templates: {"role": ..., "content": ...}, with "tool_calls" or "name" for calls of tools.
Message = Mapping[str, Any]


@functools.lru_cache(maxsize=4)
def load_tokenizer(model_name_or_path: str) -> Any:
    """The model's tokenizer, loaded once per process.

    Raises:
        ValueError: the model has no tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_name_or_path)
    except OSError as error:
        raise ValueError(f"{model_name_or_path}: no tokenizer ({first_line(error)}).") from error


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template.

    A tokenizer without a template gets a plain layout: blocks with a blank line between them, the system text bare,
    "Question:" before the user's, "Answer:" before the assistant's and at the end.

    Attributes:
        template_kwargs: go to the chat template (`enable_thinking`, ...).
    """

    tokenizer: Any
    template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The tokenizer's name, for error messages."""
        return getattr(self.tokenizer, "name_or_path", "") or "the tokenizer"

    @property
    def has_template(self) -> bool:
        return getattr(self.tokenizer, "chat_template", None) is not None

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, by default up to the point where the model begins.

        Args:
            tools: JSON schemas of functions, for the template to describe.
        """
        if not self.has_template:
            names = [PLAIN_NAMES.get(message["role"]) for message in messages]
            texts = [message["content"] for message in messages]
            blocks = [f"{name}: {text}" if name else text for name, text in zip(names, texts, strict=True)]
            return "\n\n".join([*blocks, *(["Answer:"] if generation_prompt else [])])
        return self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **self.template_kwargs,
        )

    def encode(self, text: str) -> np.ndarray:
        """`encode` with this tokenizer."""
        return encode(self.tokenizer, text)

    def shield(self, text: str) -> str:
        """Escapes `text` from data, so that `encode` finds none of the tokens in it that structure a chat.

        "<|im_end|>" in a question or in a tool's result must not end a message. It stays readable: `encode` encodes it
        as its characters. These tokens are the tokenizer's special ones and those that the template writes. Use the
        result only in `encode` (or in `render` and then `encode`).
        """
        text = text.replace(CUT, "")
        template = str(self.tokenizer.chat_template) if self.has_template else ""
        added = self.tokenizer.added_tokens_decoder.values()
        found = {str(token) for token in added if token.special or str(token) in template}
        names = sorted((name for name in found if len(name) > 1 and not name.isspace()), key=len, reverse=True)
        if any(name in text for name in names):
            text = re.sub(rf"(?=(?:{'|'.join(map(re.escape, names))}))(.)", rf"\1{CUT}", text, flags=re.DOTALL)
        if self.tokenizer.is_fast and any(token.normalized for token in added if str(token) in names):
            text = CUT.join(self._without_normalized(part, names) for part in text.split(CUT))
        return text

    def _without_normalized(self, text: str, names: Sequence[str]) -> str:
        """`text`, cut where the tokenizer finds one of these tokens in another spelling (capitals, wide letters)."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = set(self.tokenizer.convert_tokens_to_ids(names))
        spans = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        found = [span for token_id, span in spans if token_id in ids]
        if not found:
            return text
        for begin, end in reversed(found):
            # A single letter that stands for a whole token is left out.
            text = text[: begin + 1] + CUT + text[begin + 1 :] if end > begin + 1 else text[:begin] + text[end:]
        return CUT.join(self._without_normalized(part, names) for part in text.split(CUT))


def encode(tokenizer: Any, text: str) -> np.ndarray:
    """The token ids of `text`, [n] int32, without special tokens added; `CUT` separates tokens and is left out."""
    ids = [i for part in text.split(CUT) for i in tokenizer.encode(part, add_special_tokens=False)]
    return np.asarray(ids, dtype=np.int32)


def special_texts(tokenizer: Any) -> frozenset[str]:
    """The texts of the tokenizer's special tokens."""
    added = tokenizer.added_tokens_decoder.values()
    return frozenset(tokenizer.all_special_tokens).union(str(token) for token in added if token.special)


def turn_text(tokenizer: Any, token_ids: np.ndarray, keep: Sequence[str] = ()) -> str:
    """The text of one turn's tokens without the special tokens at its end (end of turn, padding).

    Special tokens elsewhere stay visible: they are part of the model's text, and a protocol's tags may be special
    tokens of the tokenizer.

    Args:
        keep: special tokens with one of these texts are kept even at the end.
    """
    special = set(tokenizer.convert_tokens_to_ids(sorted(special_texts(tokenizer).difference(keep))))
    end = len(token_ids)
    while end and int(token_ids[end - 1]) in special:
        end -= 1
    return tokenizer.decode(
        [int(i) for i in token_ids[:end]], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
