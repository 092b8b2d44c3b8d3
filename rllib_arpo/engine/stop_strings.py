"""Finds stop strings by token id: text is decoded only behind a token that can complete one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: What decoders write for bytes that are no character, or not yet.
_NOT_TEXT = "\ufffd"


class StopStrings:
    """The stop strings of one tokenizer."""

    def __init__(self, tokenizer: Any):
        """Args: `tokenizer` is one of transformers; None: the model has none."""
        self._tokenizer = tokenizer
        self._finders: dict[tuple[str, ...], StopFinder] = {}

    def finder(self, stop: tuple[str, ...]) -> StopFinder:
        """Made once for each set of strings.

        Raises:
            ValueError: a string is empty, or there is no tokenizer.
        """
        if stop not in self._finders:
            if "" in stop:
                raise ValueError(f"stop={stop!r}: a string is empty.")
            if self._tokenizer is None:
                raise ValueError(f"stop={stop!r}: the model has no tokenizer.")
            self._finders[stop] = StopFinder(stop, candidates(self._texts, stop), len(self._texts), self._decoder)
        return self._finders[stop]

    @cached_property
    def _decoder(self) -> _Decoder:
        return _Decoder(self._tokenizer)

    @cached_property
    def _texts(self) -> list[str]:
        """Of every token, by its id."""
        return self._decoder.after_text([[token] for token in range(max(self._tokenizer.get_vocab().values()) + 1)])


def candidates(texts: Sequence[str], stop: Sequence[str]) -> frozenset[int]:
    """The tokens with which a stop string can become complete, whatever comes before them.

    Args:
        texts: of each token.
    """
    ends = tuple(string[i:] for string in stop for i in range(1, len(string)))
    # The last bytes of a character have no text of their own.
    with_bytes = not all(map(str.isascii, stop))
    return frozenset(
        token
        for token, text in enumerate(texts)
        if text.startswith(ends) or any(string in text for string in stop) or (with_bytes and _NOT_TEXT in text)
    )


@dataclass(frozen=True, slots=True)
class StopFinder:
    """Says which token ends a turn.

    Attributes:
        stop: the strings; any of them ends a turn.
        candidates: the tokens that can complete one.
        num_tokens: of the tokenizer; ids from here on have no text.
        decoder: of the tokenizer.
    """

    stop: tuple[str, ...]
    candidates: frozenset[int]
    num_tokens: int
    decoder: _Decoder

    def ends(self, token_ids: Sequence[int]) -> bool:
        """Whether the last of a turn's tokens completes a stop string, given that no earlier one does."""
        if token_ids[-1] not in self.candidates:
            return False
        longest = num_last = max(map(len, self.stop))
        while True:
            last = [token for token in token_ids[-num_last:] if token < self.num_tokens]
            before, text = self.decoder.after_text([last[:-1], last])
            # Where the last tokens begin, and where the very last one begins, a character may be cut.
            if len(before.strip(_NOT_TEXT)) >= longest or num_last >= len(token_ids):
                return any(string in text for string in self.stop)
            num_last *= 2


class _Decoder:
    """Decodes tokens as they read behind other text: many tokenizers write the first token of a text differently."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        (self._text_before,) = self._decode([self._before])

    def after_text(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        texts = self._decode([[*self._before, *token_ids] for token_ids in sequences])
        return [text.removeprefix(self._text_before) for text in texts]

    def _decode(self, sequences: list[list[int]]) -> list[str]:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
            return self._tokenizer.batch_decode(sequences, **options)
        return backend.decode_batch(sequences, skip_special_tokens=False)
