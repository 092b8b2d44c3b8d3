"""Readers of the right answers in a column's value. A reader raises a ValueError that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from rllib_arpo.envs.support.texts import closing_brace

ANSWER_SEPARATOR = "<|answer_split|>"

_HASHES = re.compile(r"####\s*(.+?)\s*$")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s{}$])")

AnswerReader = Callable[[Any], tuple[str, ...]]


def texts(value: Any) -> tuple[str, ...]:
    """A string or a number, or a list of them: each is a right answer."""
    values = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in values if one is not None):
        raise ValueError("must be a string, a number, or a list of them")
    return _distinct(str(one) for one in values if one is not None)


def after_hashes(value: Any) -> tuple[str, ...]:
    """GSM8K: a worked solution that ends with "#### 1,234"."""
    found = _HASHES.search(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("does not end with '#### answer'")
    return (found[1],)


def last_boxed(value: Any) -> tuple[str, ...]:
    """MATH: a worked solution; its last `\\boxed{...}` (also `\\boxed 3` and `\\fbox{...}`) is the answer."""
    boxes = list(_BOX.finditer(value)) if isinstance(value, str) else []
    if not boxes:
        raise ValueError("has no \\boxed{}")
    if boxes[-1][1] != "{":
        return (boxes[-1][1],)
    end = closing_brace(value, boxes[-1].end())
    if end is None:
        raise ValueError("has a \\boxed{ that is not closed")
    return _distinct([value[boxes[-1].end() : end]])


def ground_truth(value: Any) -> tuple[str, ...]:
    """The ARPO authors' `reward_model`: its `ground_truth`, answers separated by `<|answer_split|>`, or a list."""
    if not isinstance(value, dict):
        raise ValueError("is not an object with a `ground_truth`")
    truth = value.get("ground_truth")
    return _distinct(truth.split(ANSWER_SEPARATOR)) if isinstance(truth, str) else texts(truth)


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.strip() for value in values if value.strip()))
