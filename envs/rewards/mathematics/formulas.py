"""The formulas in a question's text."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence

from .forms import sides
from .text import clean

#: Characters of a question that are searched, and formulas that an answer is compared with.
MAX_CHARS, MAX_FORMULAS = 8000, 12

_DELIMITED = re.compile(
    r"\$\$?([^$]+)\$\$?|\\\(((?:[^\\]|\\[^()])+)\\\)|\\\[((?:[^\\]|\\[^][])+)\\\]"
    r"|\\begin\{(?:equation|align|gather)\*?\}((?:[^\\]|\\(?!begin|end))+)\\end"
)
#: A word of a formula in a text without LaTeX's delimiters: "x^2", "-", "5x", "sqrt(12)", "y".
_WORD = re.compile(r".*[\d\\+*/^=<>√].*|-|\(?[b-zB-HJ-Z]\)?", re.DOTALL)
_STRUCTURE = re.compile(r"[-+*/^<>|!]|\\[a-zA-Z]")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_LETTER = re.compile(r"[A-Za-z]")


@functools.lru_cache(maxsize=256)
def formulas(question: str) -> tuple[str, ...]:
    """The formulas of a question in the spelling of `clean`, and the sides of its equations."""
    question = question[:MAX_CHARS]
    found = ["".join(groups) for groups in _DELIMITED.findall(question)]
    if not found:
        runs = itertools.groupby(question.split(), lambda word: bool(_WORD.fullmatch(word.rstrip(".,;:?!"))))
        found = [" ".join(words) for is_formula, words in runs if is_formula]
    whole = [text for text in map(clean, (one.rstrip(".,;:?! ") for one in found)) if text]
    return tuple(dict.fromkeys(side for text in whole for side in (text, *sides(text)) if side))


def candidates(found: Sequence[str], gold: str, answer: str) -> tuple[str, ...]:
    """The formulas that could equal the gold answer: they have structure, and no further variables."""
    letters = _letters(gold) | _letters(answer)
    same = [one for one in found if _STRUCTURE.search(one) and _letters(one) <= letters and one != clean(gold)]
    return tuple(same[:MAX_FORMULAS])


def _letters(text: str) -> set[str]:
    return set(_LETTER.findall(_COMMAND.sub("", text)))
