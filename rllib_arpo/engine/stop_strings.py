"""Finds stop strings by token id, and decodes text only after a token that can complete one."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

#: Decoders write this for bytes that are not, or not yet, a character.
_NOT_TEXT = "\ufffd"


class StopStrings:
    """Decides whether a token ends a turn, for all requests of an engine."""

    def __init__(self, tokenizer: Any):
        """Takes a tokenizer of transformers, or None if the model has none."""
        self._tokenizer = tokenizer
        self._candidates: dict[tuple[str, ...], frozenset[int]] = {}

    def candidates(self, stop: tuple[str, ...]) -> frozenset[int]:
        """The tokens that can complete one of the strings; computed once for each set of strings.

        Raises:
            ValueError: a string is empty, or there is no tokenizer.
        """
        if stop not in self._candidates:
            if "" in stop:
                raise ValueError(f"stop={stop!r}: a string is empty.")
            if self._tokenizer is None:
                raise ValueError(f"stop={stop!r}: the model has no tokenizer.")
            self._candidates[stop] = candidates(self._texts, stop)
        return self._candidates[stop]

    def end(self, stop: tuple[str, ...], token_ids: Sequence[int]) -> bool:
        """Whether the last token of a turn completes one of the strings.

        This token must be one of the strings' `candidates`, and no earlier token may have completed a string.
        """
        longest = num_last = max(map(len, stop))
        while True:
            # Ids that the tokenizer does not know have no text.
            last = [token for token in token_ids[-num_last:] if token < len(self._texts)]
            before, text = self._after_text([last[:-1], last])
            # A character may be cut at the first of these tokens, and before the last one.
            if len(before.strip(_NOT_TEXT)) >= longest or num_last >= len(token_ids):
                return any(string in text for string in stop)
            num_last *= 2

    @cached_property
    def _texts(self) -> list[str]:
        """The text of every token, by its id."""
        return self._after_text([[token] for token in range(max(self._tokenizer.get_vocab().values()) + 1)])

    def _after_text(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Decodes sequences after some other text: many tokenizers decode the first token of a text differently."""
        token_ids, before = self._other_text
        return [text.removeprefix(before) for text in self._decode([[*token_ids, *tokens] for tokens in sequences])]

    @cached_property
    def _other_text(self) -> tuple[list[int], str]:
        token_ids = self._tokenizer.encode("a", add_special_tokens=False)[-1:]
        return token_ids, self._decode([token_ids])[0]

    def _decode(self, sequences: list[list[int]]) -> list[str]:
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return self._tokenizer.batch_decode(sequences, **options)


def candidates(texts: Sequence[str], stop: Sequence[str]) -> frozenset[int]:
    """The tokens that can complete a stop string, whatever precedes them.

    Args:
        texts: the text of each token.
    """
    ends = tuple(string[i:] for string in stop for i in range(1, len(string)))
    # The last bytes of a character have no text of their own.
    with_bytes = not all(map(str.isascii, stop))
    return frozenset(
        token
        for token, text in enumerate(texts)
        if text.startswith(ends) or any(string in text for string in stop) or (with_bytes and _NOT_TEXT in text)
    )
