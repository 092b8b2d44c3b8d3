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
from rllib_arpo.envs.tools.tool import THINK

PLAIN_NAMES = {"user": "Question", "assistant": "Answer"}
#: A Unicode noncharacter, which occurs in no text; no token may reach across it.
CUT = "\ufdd0"
#: Placeholders for messages of these roles while a template is rendered.
SYSTEM, USER, ASSISTANT = "\ue000system\ue001", "\ue000user\ue001", "\ue000assistant\ue001"
#: Placeholder for the assistant's text in the message of this number.
_SAID = "\ue000{}\ue001"
_EMPTY_THOUGHT = re.compile(rf"<{THINK}>\s*</{THINK}>\s*$")
#: The last tokens of what a model reads; a template that opens a thought does it there.
_TAIL = 16
#: What `behind` puts before a text instead, if the first tokens of the text merge with `last`.
_BEFORE = (".", "\n", "a", "0", ">")

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

        The assistant's texts stay as they are, as a model's own tokens do, though many templates leave out thoughts.
        If the template takes no system message, its text begins the first message of the user.

        Args:
            tools: JSON schemas of functions, for the template to describe.
        """
        if not self.has_template:
            names = [PLAIN_NAMES.get(message["role"]) for message in messages]
            texts = [message["content"] for message in messages]
            blocks = [f"{name}: {text}" if name else text for name, text in zip(names, texts, strict=True)]
            return "\n\n".join([*blocks, *(["Answer:"] if generation_prompt else [])])
        if len(messages) > 1 and [m["role"] for m in messages[:2]] == ["system", "user"] and not self._takes_system:
            system, asked, *others = messages
            messages = [{**asked, "content": f"{system['content']}\n\n{asked['content']}"}, *others]
        said = {i: m["content"] for i, m in enumerate(messages) if m["role"] == "assistant" and m["content"]}
        opaque = [{**m, "content": _SAID.format(i)} if i in said else m for i, m in enumerate(messages)]
        rendered = self._apply(opaque, tools, generation_prompt)
        for i, text in said.items():
            rendered = rendered.replace(_SAID.format(i), text)
        return rendered

    def _apply(self, messages: Sequence[Message], tools: Sequence[Message] = (), generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **self.template_kwargs,
        )

    @functools.cached_property
    def _takes_system(self) -> bool:
        """Whether the template writes a system message: some refuse it, others leave it out."""
        from jinja2 import TemplateError

        try:
            return SYSTEM in self._apply([{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}])
        except TemplateError:
            return False

    @functools.cached_property
    def lead(self) -> str:
        """White space that the template, and so the model, writes between the prompt and the assistant's text."""
        asked: list[Message] = [{"role": "user", "content": USER}]
        begin, whole = self.render(asked), [*asked, {"role": "assistant", "content": ASSISTANT}]
        before = _EMPTY_THOUGHT.sub("", self.render(whole, generation_prompt=False).partition(ASSISTANT)[0])
        space = before.removeprefix(begin)
        return space if self.has_template and before.startswith(begin) and space.isspace() else ""

    def encode_prompt(self, text: str) -> np.ndarray:
        """The token ids of a whole text, [n] int32. Without a template they begin as the tokenizer begins a text."""
        first, *others = text.split(CUT)
        ids = [*([] if self.has_template else self._bos), *self.tokenizer.encode(first, add_special_tokens=False)]
        return np.concatenate([np.asarray(ids, dtype=np.int32), *map(self.encode, others)])

    def encode(self, text: str, turn: Sequence[int] | np.ndarray = ()) -> np.ndarray:
        """The token ids of a text behind another one, [n] int32; `CUT` separates tokens and is left out.

        Args:
            turn: the tokens before it, as far as they are known.
        """
        parts = text.split(CUT)
        if not self._marks_texts:
            ids = [encode_part(self.tokenizer, part) for part in parts]
        else:
            last = self.tokenizer.decode([int(i) for i in turn[-1:]])
            ids = [behind(self.tokenizer, part, last if i == 0 else "") for i, part in enumerate(parts)]
        return np.asarray([token for part in ids for token in part], dtype=np.int32)

    @functools.cached_property
    def _bos(self) -> list[int]:
        """The special tokens that the tokenizer writes before a text."""
        whole, bare = self.tokenizer.encode("a"), encode_part(self.tokenizer, "a")
        return next(whole[:i] for i in range(len(whole) + 1) if whole[i : i + len(bare)] == bare)

    @functools.cached_property
    def _marks_texts(self) -> bool:
        """Whether the tokenizer begins every text that it encodes with a blank or a marker."""
        return any(behind(self.tokenizer, text) != encode_part(self.tokenizer, text) for text in ("a", "<"))

    def turn_text(self, read: np.ndarray, token_ids: np.ndarray, keep: Sequence[str] = ()) -> str:
        """`turn_text` of a turn, from the thought on that the template has opened in the tokens read before it."""
        end = self.tokenizer.decode([int(i) for i in read[-_TAIL:]]).rstrip()
        opened = f"<{THINK}>" if end.endswith(f"<{THINK}>") else ""
        return opened + turn_text(self.tokenizer, token_ids, keep)

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


def encode_part(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text by itself, without special tokens added."""
    return tokenizer.encode(text, add_special_tokens=False)


def behind(tokenizer: Any, text: str, last: str = "") -> list[int]:
    """The token ids of `text` behind `last`. Alone, many tokenizers would put a blank or a marker before it."""
    for before in filter(None, (last, *_BEFORE)):
        ids, both = encode_part(tokenizer, before), encode_part(tokenizer, before + text)
        if both[: len(ids)] == ids and tokenizer.unk_token_id not in ids:
            return both[len(ids) :]
    return encode_part(tokenizer, text)


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
