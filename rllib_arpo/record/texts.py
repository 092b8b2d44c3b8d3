"""The texts of tokens, decoded as they were sampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class TurnText:
    """The texts of a turn; all None if the model has no tokenizer.

    Attributes:
        text: what the model wrote, special tokens included.
        token_ends: where each token ends in `text`, in characters; None: the tokenizer cannot say.
        tool_output: what the model read next; None: nothing.
    """

    text: str | None
    token_ends: list[int] | None
    tool_output: str | None


def token_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> tuple[str | None, list[int] | None]:
    """The text of sampled tokens, special tokens included, and where each token ends in it.

    A token that holds only a part of a character ends where the token before it does; the token that completes the
    character has it. The tokens are decoded one by one, since their texts depend on those before.

    Returns:
        (text, ends): `text[ends[i - 1]:ends[i]]` is token i's; `text` is None without a tokenizer, `ends` also if the
        tokenizer is not one of the library `tokenizers`, or changes text that it has decoded already.
    """
    from tokenizers.decoders import DecodeStream

    ids = [int(token) for token in token_ids]
    text = plain_text(tokenizer, ids)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if text is None or backend is None:
        return text, None
    stream, pieces, ends, length = DecodeStream(skip_special_tokens=False), [], [], 0
    for token in ids:
        piece = stream.step(backend, token) or ""
        pieces.append(piece)
        length += len(piece)
        ends.append(length)
    if not text.startswith("".join(pieces)):
        return text, None
    if ends:
        # The last token may leave a character incomplete.
        ends[-1] = len(text)
    return text, ends


def plain_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> str | None:
    """The text of tokens, special tokens included; None without a tokenizer."""
    if tokenizer is None:
        return None
    ids = [int(token) for token in token_ids]
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
