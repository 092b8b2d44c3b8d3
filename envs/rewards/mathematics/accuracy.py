"""Answers in mathematics: symbolic equality by math-verify, in processes that can be killed.

`forms` defines equality. This process decides plain numbers, words and structures that differ; comparisons that need
algebra go to a worker process (`worker`), which never gets more than its share of time, memory and processors. If a
comparison fails, the answers count as different. Otherwise a policy could leave the training by an answer on which
SymPy fails, or delay the verdicts on other answers.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards.mathematics import forms
from rllib_arpo.envs.rewards.mathematics.formulas import candidates, formulas
from rllib_arpo.envs.rewards.mathematics.spelling import spelled
from rllib_arpo.envs.rewards.mathematics.text import clean, read_quantity
from rllib_arpo.envs.sandbox.fork_server import CallStatus, shared_server
from rllib_arpo.envs.support.boxes import stated
from rllib_arpo.envs.support.per_loop import slot

#: Megabytes of a comparison beyond those of the loaded modules.
MEMORY_MB = 256


@dataclass(frozen=True, slots=True)
class Lane:
    """Limits of a comparison, and how many run at once.

    The limit of processor time stops long computations. The limit of wall time is larger, since engine, learner and
    tools share the processors; it bounds the time of a verdict.
    """

    processor_s: float
    wall_s: float
    places: int


_CORES = len(os.sched_getaffinity(0))
#: All comparisons of GSM8K's and MATH500's answers with each other need less than 0.3 s; 99 % less than 0.1 s. A
#: comparison that does not finish in the first lane starts again in the second, where it delays no other. Both take
#: less than 2 s.
LANES = (Lane(0.15, 0.8, 2 * _CORES), Lane(0.6, 1.1, max(1, _CORES // 2)))

#: Runs once in the worker, which finds this folder as the package `mathematics`.
SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import mathematics
sys.path.pop(0)
from mathematics.worker import warm_up
warm_up()
"""
_COMPARE = "from mathematics.worker import compare; compare({gold!r}, {answer!r}, {formulas!r}, {processor_s})"
_UNSOLVED = re.compile(r"\\(?:sum|prod|i*int|oint|lim|frac\{d\}|frac\{\\partial)(?![a-zA-Z])")

_BASES = re.compile(r"\bbase\b|binary|ternary|octal|hexadecimal", re.IGNORECASE)


class NeedsAlgebra(Exception):
    """The texts alone do not decide the comparison."""


async def math_accuracy(answer: str, gold: Sequence[str], question: str = "") -> float:
    """1 if `answer` equals one of the `gold` answers as mathematics, and does not restate the question; otherwise 0.

    A gold answer may stand in a box or a sentence.

    Raises:
        BrokenToolError: the comparing process cannot be started.
    """
    for one in map(stated, gold):
        if await _equal(one, answer, question):
            return 1.0
    return 0.0


async def solved_math_accuracy(answer: str, question: Question) -> float:
    """`math_accuracy`, but 0 for an answer that is not worked out, such as the question's own words.

    If the gold answer is a plain number, the answer must be one as well: "12 * 31 - 5" does not answer "What is 12 * 31
    - 5?". It must not be the question's only number in the question's form ("Reduce 6/8"), and no fraction that can be
    reduced if the question states its value. If the gold answer is a formula, the answer may have a sum, product,
    integral, limit or derivative only if the gold answer has one. It may not keep what the gold answer has resolved of
    the question's formula (`restating`; "Factor x^2 - 1").

    Raises:
        BrokenToolError: see `math_accuracy`.
    """
    text, golds = question.asked, list(map(stated, question.answers))
    if _BASES.search(text) and (with_base := read_quantity(clean(answer) or "")).base:
        # Where the question is about bases, the gold answer may leave its own out.
        bare = [gold for gold in golds if not read_quantity(clean(gold) or "").base]
        answer = with_base.text if bare else answer
    solved = [gold for gold in golds if worked_out(answer, gold, text)]
    return await math_accuracy(answer, solved, text)


def worked_out(answer: str, gold: str, question: str) -> bool:
    """Whether `answer` is more than a part of the question, seen against this gold answer."""
    ours, theirs = clean(answer), clean(gold)
    if not ours or not theirs or _packed(ours) == _packed(theirs):
        return True
    if _is_number(theirs) and not forms.is_region(ours):
        asked = formulas(question)
        written = {_digits(formula) for formula in asked} - {()}
        value = read_quantity(theirs).number
        variables = forms.LETTER.findall(" ".join(asked))
        if not _is_number(ours, units=ours[-1] not in variables):
            return False
        if _can_be_reduced(ours) and any(read_quantity(one).number == value for one in asked):
            return False
        return _digits(ours) == _digits(theirs) or written != {_digits(ours)}
    if _UNSOLVED.search(ours) and not _UNSOLVED.search(theirs):
        return False
    is_value = _is_number(ours) and ("=" in ours or forms.right_side(ours) == ours)
    formula = any(c in ours for c in "+-*/^\\=<>") and not is_value and not forms.WORDS.fullmatch(ours)
    return not (formula and _packed(ours) in _packed(spelled(question)))


async def _equal(gold: str, answer: str, question: str) -> bool:
    try:
        return forms.equal(gold, answer, _refuse)
    except NeedsAlgebra:
        return await _equal_by_algebra(gold, answer, question)


async def _equal_by_algebra(gold: str, answer: str, question: str) -> bool:
    asked = candidates(formulas(question), gold, answer)
    worker = shared_server(SETUP)
    for lane in LANES:
        code = _COMPARE.format(gold=gold, answer=answer, formulas=asked, processor_s=lane.processor_s)
        async with slot(lane, lane.places):
            reply = await worker.run(code, lane.wall_s, MEMORY_MB)
        late = reply.status == CallStatus.TIMEOUT or reply.signal == signal.SIGPROF
        if not late:
            break
    # If only the question's formulas were too slow, the answer is right.
    return (late or reply.status == CallStatus.OK) and reply.output.strip() == "equal"


def _refuse(gold: str, answer: str) -> bool:
    raise NeedsAlgebra


def _is_number(text: str, *, units: bool = False) -> bool:
    """Whether a cleaned answer is a plain number, or several; it may follow a name ("x = 5").

    Args:
        units: whether "5m" is a number with a unit rather than a formula.
    """
    items = forms.read_form(text).items if text else ()
    if items != (text,):
        return bool(items) and all(_is_number(item, units=units) for item in items)
    value = forms.right_side(text)
    if value != text:
        return _is_number(value, units=units)
    return read_quantity(forms.GLUED.sub(" ", text) if units else text).number is not None


def _digits(text: str) -> tuple[str, ...]:
    """The digits of a number: `\\frac{6}{8}` and "6/8" are ("6", "8"), "0.750" is (".75",), "75\\%" is ("75", "%")."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    if "\\overline" in plain:
        return ("repeating",)
    found = re.findall(r"\d*\.\d+|\d+|%", plain)
    return tuple(one.strip("0").rstrip(".") if "." in one else one.lstrip("0") for one in found)


def _can_be_reduced(text: str) -> bool:
    """Whether a number is written as a fraction of whole numbers with a common factor."""
    parts = _digits(text)
    is_fraction = len(parts) == 2 and all(map(str.isdigit, parts)) and ("/" in text or "\\frac" in text)
    return is_fraction and math.gcd(*map(int, parts)) > 1


def _packed(text: str) -> str:
    return text.replace(" ", "")
