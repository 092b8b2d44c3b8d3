"""Compares two answers in mathematics, down to single expressions: lists, tuples, sets, intervals, equations.

Conventions, where mathematics leaves a choice:
  - `(1,2)`, `[1,2]`, `(1,2]` and `\\{1,2\\}` are four different things. Tuples and intervals keep their order; sets do
    not. A list without brackets ("1, 2", "1 or 2", "\\pm 2") has no order against lists and sets, and has one against a
    tuple.
  - One value is never equal to several. An equation "x = 5" counts as its right side against a bare "5"; in a chain
    "x = 2 + 3 = 5" every part must be right.
  - Units, currencies and degrees are compared when both sides have one, and ignored when only one has (the MATH data
    set asks "how many centimetres?" and has golds with and without unit). Units are not converted.
  - The answer may leave out the gold's number base, but not add one. "(x,y) = (1,2)" names a tuple if its variables are
    in alphabetical order; "x < 1 or x > 2" is a union.
  - A percent sign on one side only: the other side may be the same number ("50\\%" and "50", as MATH and math-verify
    have it) or the value ("50\\%" and "0.5").
  - Formulas are equal if they are equal wherever their roots and logarithms are real: `\\sqrt{1/x}` is `1/\\sqrt{x}`.
    `|x|` is not `x`. Python's list `[1, 2]` is a list without brackets if the gold answer is one.
  - Decimals are exact: 0.333 is not 1/3. "2,100" is a number, "2, 100" a list. "3\\frac{1}{2}" and "3 1/2" are mixed
    numbers. Letters are case-sensitive in formulas and not in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .brackets import closes_at_end, split
from .text import clean, read_quantity

#: Compares two single expressions, relations or sets, given in the spelling of `clean`: gold, answer -> equal.
Compare = Callable[[str, str], bool]

ONE, LIST, SET, TUPLE = "one", "list", "set", "()"
_BRACKETS = ("()", "[]", "(]", "[)")
_SEPARATOR = re.compile(r"[,;]|\\text\{ ?,? ?(?:and|or) ?\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_OR, _AND = (re.compile(rf"(?<![A-Za-z\\]){word}(?![A-Za-z])") for word in ("or", "and"))
_LOG = re.compile(r"\\log(?! ?_)")
_EQUALS = re.compile(r"=+|\\in(?![A-Za-z])")
_INEQUALITY = re.compile(r"<|>|\\(?:le|ge|ne)(?![A-Za-z])")
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus|mathbb|emptyset|varnothing)(?![A-Za-z])")
_NAME = re.compile(
    r"(?:m? ?\\angle ?)?(?:[A-Za-z]{1,3}|\\[a-z]{2,7}|\\(?:text|vec|overrightarrow)\{[^{}]*\})"
    r"(?: ?_ ?(?:\w|\{[^{}]*\}))?'?(?:\^\{-1\})?(?: ?\([A-Za-z]\))?"
    r"|\|[A-Za-z]\|"
)
_VARIABLES = re.compile(r"\(?([A-Za-z](?: ?, ?(?:[A-Za-z]|\\[a-z]{2,7}))+)\)?")
_BUILDER = re.compile(r"([A-Za-z])(?: ?\\in ?\\mathbb\{R\})? ?[|:] ?(.+)")
#: An answer that is text.
WORDS = re.compile(r"\(?\s*\\text\{([^{}]*)\}\s*\)?|([A-Za-z]{3,}(?: [A-Za-z]+)*)")
LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
#: A unit of one letter without a blank before it; "5m" is a formula unless the gold answer is a plain number.
GLUED = re.compile(r"(?<=\d)(?=[mgshL]$)")
_PYTHONS_J = re.compile(r"(?<=\d)j(?![A-Za-z])")
_CONSTANT = re.compile(r"\+ ?([cCkK])$")
_INNER_SPACE = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Form:
    """The structure of an answer. `kind`: ONE, LIST, SET or its brackets; `items`: its parts (for ONE: itself)."""

    kind: str
    items: tuple[str, ...]


def equal(gold: str, answer: str, compare: Compare) -> bool:
    """Whether `answer` is equal to `gold`. `compare` decides comparisons that need algebra."""
    clean_gold = clean(gold)
    clean_answer = clean(answer, r"\log" if clean_gold and _LOG.search(clean_gold) else r"\ln")
    if not clean_gold or not clean_answer:
        return bool(gold.strip()) and gold.strip() == answer.strip()
    return _equal(clean_gold, _written_as(clean_gold, clean_answer), compare)


def _written_as(gold: str, answer: str) -> str:
    """The answer with the gold's letters for Euler's number (SymPy's E), the constant of integration (C or c), and the
    imaginary unit (Python's j, if the gold has no j and the answer no i).
    """
    letters = set(LETTER.findall(gold))
    if "j" not in letters and "i" not in LETTER.findall(answer):
        answer = _PYTHONS_J.sub("i", answer)
    if "e" in letters and "E" not in letters:
        answer = LETTER.sub(lambda found: found[0].replace("E", "e"), answer)
    theirs, ours = _CONSTANT.search(gold), _CONSTANT.search(answer)
    if theirs and ours and (theirs[1] == "C" or theirs[1].lower() == ours[1].lower()):
        answer = answer[: ours.start()] + theirs[0]
    return answer


def _equal(gold: str, answer: str, compare: Compare) -> bool:
    if not gold or not answer:
        return False
    if _INNER_SPACE.sub("", gold) == _INNER_SPACE.sub("", answer):
        return True
    if WORDS.fullmatch(gold) or WORDS.fullmatch(answer):
        return _words(gold) == _words(answer) != ""
    ours, theirs = read_form(answer), read_form(gold)
    if ours.kind == theirs.kind == ONE:
        return _equal_ones(theirs.items[0], ours.items[0], compare)
    if ONE in (ours.kind, theirs.kind):
        return _equal_mixed(theirs, ours, gold, answer, compare)
    kinds = {ours.kind, theirs.kind}
    if kinds == {SET}:
        # An honest answer names no element of a set more than twice; a long list must not cause a long computation.
        few = len(ours.items) <= 2 * len(theirs.items)
        return few and _covers(theirs.items, ours.items, compare) and _covers(ours.items, theirs.items, compare)
    if len(ours.items) != len(theirs.items):
        return False
    if kinds <= {LIST, SET} or (theirs.kind, ours.kind) == (LIST, "[]"):  # Python's list of roots.
        return _matches(theirs.items, ours.items, compare)
    if len(kinds) == 1 or kinds == {LIST, TUPLE}:
        return all(_equal(g, a, compare) for g, a in zip(theirs.items, ours.items, strict=True))
    return False


def read_form(text: str) -> Form:
    """Takes the outermost structure of a cleaned answer apart."""
    if read_quantity(text).number is not None:
        return Form(ONE, (text,))
    items = split(text, _SEPARATOR)
    if len(items) > 1:
        region = _region(text, items)
        return Form(ONE, (region,)) if region else Form(LIST, _with_signs(item for item in items if item))
    braces = text.startswith("\\{") and text.endswith("\\}") and closes_at_end(text[1:-2] + "}")
    inner = text[2:-2].strip() if braces else text[1:-1].strip()
    if braces or (text[0] == "{" and closes_at_end(text)):
        if match := _BUILDER.fullmatch(inner):
            return Form(ONE, (match[2],))
        return Form(SET, _with_signs(item for item in split(inner, _SEPARATOR) if item))
    if text[0] + text[-1] in _BRACKETS and closes_at_end(text):
        items = split(inner, _SEPARATOR)
        if len(items) > 1:
            return Form(text[0] + text[-1], tuple(items))
    signed = _with_signs([text])
    return Form(ONE, signed) if len(signed) == 1 else Form(LIST, signed)


def _region(text: str, items: Sequence[str]) -> str | None:
    """The union ("x < 1 or x > 2") or intersection of inequalities for one variable; None if the items are none."""
    if all(map(_INEQUALITY.search, items)) and len(set(LETTER.findall(text))) == 1:
        for word, operation in ((_OR, r"\cup "), (_AND, r"\cap ")):
            if len(word.findall(text)) == len(items) - 1:
                return operation.join(items)
    return None


def _equal_ones(gold: str, answer: str, compare: Compare) -> bool:
    (gold_name, gold_parts), (name, parts) = _equation(gold), _equation(answer)
    if gold_parts and parts:
        same_name = name is not None and gold_name is not None and _same_name(name, gold_name)
        return (same_name and _all_equal(gold_parts, parts, compare)) or compare(gold, answer)
    if gold_parts:
        return gold_name is not None and _all_equal(gold_parts, [answer], compare)
    if parts:
        return _all_equal([gold], parts, compare)
    if is_region(gold + answer):
        return compare(gold, answer)
    return _equal_quantities(gold, answer, compare)


def _equal_quantities(gold: str, answer: str, compare: Compare) -> bool:
    theirs = read_quantity(gold)
    ours = read_quantity(answer if theirs.number is None else GLUED.sub(" ", answer))
    if not _same_unit(theirs.unit, ours.unit) or ours.base not in ("", theirs.base):
        return False
    if theirs.number is None or ours.number is None:
        # LaTeX's parser would take "2 1/2" for a product, and "1e6" for one with Euler's number.
        return compare(*(one.text if one.number is None else _fraction(one.number) for one in (theirs, ours)))
    if theirs.percent != ours.percent:
        percent, plain = (theirs, ours) if theirs.percent else (ours, theirs)
        return percent.number is not None and plain.number in (percent.number, percent.number / 100)
    return theirs.number == ours.number


def _fraction(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else rf"\frac{{{number.numerator}}}{{{number.denominator}}}"


def _same_unit(one: str, other: str) -> bool:
    """Whether two units are equal, or one is missing, or one is plain degrees (of what, the other says)."""
    return not one or not other or one == other or ("degree" in (one, other) and one[:7].strip() == other[:7].strip())


def _equal_mixed(theirs: Form, ours: Form, gold: str, answer: str, compare: Compare) -> bool:
    """One side is a single thing, the other is not: equal if the other has one element, or as sets of numbers."""
    one, several = (theirs, ours) if theirs.kind == ONE else (ours, theirs)
    text = one.items[0]
    name, parts = _equation(text)
    if name is not None and len(parts) == 1 and read_form(parts[0]).kind != ONE:
        return _equal(*((parts[0], answer) if one is theirs else (gold, parts[0])), compare)
    if several.kind == SET and len(several.items) == 1 and not is_region(several.items[0]):
        return _equal(theirs.items[0], ours.items[0], compare)
    if several.kind in _BRACKETS and is_region(text):
        return compare(text if one is theirs else gold, text if one is ours else answer)
    return False


def _equation(text: str) -> tuple[str | None, list[str]]:
    """(the name on the left of an equation or of \\in, the parts on its right).

    If the text is not an equation, there are no parts. If its left side is not a name, the name is None, and all sides
    are parts.
    """
    if _INEQUALITY.search(text):
        return None, []
    first, *rest = split(text, _EQUALS)
    if not rest or not all(rest):
        return None, []
    variables = _VARIABLES.fullmatch(first)
    in_order = variables and re.findall(r"[A-Za-z]+", first) == sorted(re.findall(r"[A-Za-z]+", first))
    if _NAME.fullmatch(first) or in_order:
        return first.replace(" ", ""), rest
    return (rest[0], [first]) if len(rest) == 1 and LETTER.fullmatch(rest[0]) else (None, [first, *rest])


def _same_name(one: str, other: str) -> bool:
    """Whether two names are equal, or only one of them has an index: the roots x_1 and x_2 are also called x."""
    return one == other or one.startswith(f"{other}_") or other.startswith(f"{one}_")


def right_side(text: str) -> str:
    r"""The last side of an equation or of \in: "5" of "x = 2 + 3 = 5", "[1,2]" of "x \in [1,2]". Otherwise the text."""
    return (_equation(text)[1] or [text])[-1]


def is_region(text: str) -> bool:
    """Whether a cleaned answer is an inequality, or made of intervals and other sets."""
    return bool(_INEQUALITY.search(text) or _SET_OPERATION.search(text))


def sides(text: str) -> list[str]:
    """The sides of an equation; none if the text is not one."""
    found = split(text, _EQUALS)
    return found if len(found) > 1 else []


def _all_equal(gold_parts: Sequence[str], parts: Sequence[str], compare: Compare) -> bool:
    return all(_equal(gold_parts[-1], part, compare) for part in parts)


def _matches(gold: Sequence[str], items: Sequence[str], compare: Compare) -> bool:
    """Whether the two are equal in some order (equality is transitive enough for the first match to do)."""
    left = list(items)
    for one in gold:
        found = next((i for i, item in enumerate(left) if _equal(one, item, compare)), None)
        if found is None:
            return False
        del left[found]
    return True


def _covers(items: Sequence[str], others: Sequence[str], compare: Compare) -> bool:
    return all(any(_equal(one, other, compare) for other in others) for one in items)


def _with_signs(items: Iterable[str]) -> tuple[str, ...]:
    """The items, with two for each that has a "\\pm" in it."""
    result = []
    for item in items:
        if "\\pm" in item:
            result.append(item.replace("\\pm", "+").replace("\\mp", "-").lstrip("+ "))
            result.append(item.replace("\\pm", "-").replace("\\mp", "+"))
        else:
            result.append(item)
    return tuple(result)


def _words(text: str) -> str:
    """The words of a text answer: without `\\text`, brackets, punctuation at the ends, and capital letters."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    return " ".join(plain.lower().split()).strip("()[]{}.,:;!' \"")
