"""Finds the answer in a text: in a box, where models and data sets put it, and in other places where data sets do."""

from __future__ import annotations

import contextlib
import json
import re

#: A box with the brace that opens it, or with what it holds without braces; any other brace; an escaped character.
_TOKEN = re.compile(
    r"\\{1,2}(?:boxed|fbox)(?![A-Za-z])\s*"
    r"(?:(?P<opens>\{)|(?P<bare>-?\d+(?:[.,/]\d+)*|[A-Za-z]+|\\[A-Za-z]+(?:\{[^{}]*\}|\d+)*|[^\s{}$\\]))"
    r"|\\.|[{}]",
    re.DOTALL,
)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_HASHES = re.compile(r"####\s*(.+?)\s*$")
_SENTENCE = re.compile(r"\banswer\s*(?:is\b|:|=)\s*}?[\s:*]*(.+?)[\s.*]*$", re.IGNORECASE | re.DOTALL)
#: AMC's choices: "\\textbf{(B)}\\ 12".
_CHOICE = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{ ?\(([A-H])\) ?\}(?:\\[ ,;:]|\\q?quad|~|\s)*(\S.*)")


def has_box(text: str) -> bool:
    """Whether a box begins in `text`."""
    return bool(_BOX.search(text))


def boxes(text: str) -> list[str]:
    """What the boxes in `text` hold, in their order, stripped: `\\boxed{5}`, `\\boxed {5}`, `\\boxed5`, `\\fbox{5}`.

    Boxes that are empty, never closed, or within another box do not count.
    """
    found: list[tuple[int, int]] = []
    groups: list[int | None] = []  # Where the open groups that are boxes begin; None for the other groups.
    for token in _TOKEN.finditer(text):
        if token["bare"]:
            found.append(token.span("bare"))
        elif token["opens"]:
            groups.append(token.end())
        elif token[0] == "{":
            groups.append(None)
        elif token[0] == "}" and groups and (begin := groups.pop()) is not None:
            while found and found[-1][0] >= begin:
                found.pop()
            found.append((begin, token.start()))
    return [held for begin, end in found if (held := text[begin:end].strip())]


def boxed(text: str) -> str | None:
    """The model's answer: what the box in `text` holds; None without a box, and where boxes hold different things."""
    held = set(boxes(text))
    return held.pop() if len(held) == 1 else None


def solution_answer(text: str) -> str | None:
    """The answer of a worked solution: what its last box holds (MATH), or what follows "####" at its end (GSM8K)."""
    held, after_hashes = boxes(text), _HASHES.search(text)
    return held[-1] if held else after_hashes and after_hashes[1]


def stated(gold: str) -> str:
    """A gold answer without what stands around it: the last box, or what follows "####" or "the answer is"."""
    sentence = _SENTENCE.search(gold)
    return solution_answer(gold) or (sentence[1] if sentence else gold)


def answers_in_list(gold: str) -> list[str]:
    """The answers of a gold that is a JSON list of texts (`["5", "five"]`), otherwise the gold itself.

    A list of numbers is left alone: `[1, 2]` is an interval. Of a choice the letter and the value are answers too.
    """
    if gold.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(gold)
            if found and all(isinstance(one, str) for one in found):
                return found
    if choice := _CHOICE.fullmatch(gold.strip()):
        return [gold, *choice.groups()]
    return [gold]
