"""Between text and tokens: the prompt, and the text of a turn. Nothing that was sampled is ever tokenised again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

PLAIN_NAMES = {"user": "Question", "assistant": "Answer"}


@functools.lru_cache(maxsize=4)
def load_tokenizer(model_name_or_path: str):
    """The model's tokenizer, loaded once per process.

    Raises:
        ValueError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_name_or_path)
    except OSError as error:
        raise ValueError(f"{model_name_or_path}: no tokenizer ({str(error).splitlines()[0]}).") from error


def encode(tokenizer, text: str) -> np.ndarray:
    """The token ids of `text`, [n] int32, without special tokens added."""
    return np.asarray(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)


def prompt_text(tokenizer, messages: Sequence[tuple[str, str]], template_kwargs: dict[str, Any] | None = None) -> str:
    """The prompt up to where the model begins, by the tokenizer's chat template.

    A tokenizer without one gets a plain layout: blocks with a blank line between them, the system text bare,
    "Question:" before the user's, "Answer:" before the assistant's and at the end.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        names = [PLAIN_NAMES.get(role) for role, _ in messages]
        blocks = [f"{name}: {m[1]}" if name else m[1] for name, m in zip(names, messages, strict=True)]
        return "\n\n".join([*blocks, "Answer:"])
    dicts = [{"role": role, "content": content} for role, content in messages]
    return tokenizer.apply_chat_template(dicts, tokenize=False, add_generation_prompt=True, **(template_kwargs or {}))


def turn_text(tokenizer, token_ids: np.ndarray, keep: Sequence[str] = ()) -> str:
    """The text of one turn's tokens without the special tokens at its end (end of turn, padding).

    Special tokens elsewhere stay visible: they are part of what the model wrote, and a tokenizer may hold a protocol's
    tags as special tokens.

    Args:
        keep: special tokens with one of these texts are kept at the end too.
    """
    special = {
        i for i, text in zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True) if text not in keep
    }
    end = len(token_ids)
    while end and int(token_ids[end - 1]) in special:
        end -= 1
    return tokenizer.decode(
        [int(i) for i in token_ids[:end]], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
