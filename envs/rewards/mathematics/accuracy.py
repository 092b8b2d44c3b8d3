"""Answers in mathematics: symbolic equality by math-verify, in processes that can be killed.

`forms` defines equality. This process decides plain numbers, words and structures that differ; comparisons that need
algebra go to a worker process (`worker`), which never gets more than its share of time, memory and processors. Any
failure of a comparison means "not equal": a policy must not be able to leave the training by an answer on which SymPy
fails, nor to delay the verdicts of its neighbours.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards.mathematics import forms
from rllib_arpo.envs.rewards.mathematics.text import clean, read_quantity, spelled
from rllib_arpo.envs.sandbox.fork_server import CallStatus, shared_server
from rllib_arpo.envs.support.per_loop import place

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
_COMPARE = "from mathematics.worker import compare; compare({gold!r}, {answer!r}, {processor_s})"
_UNSOLVED = re.compile(r"\\(?:sum|prod|i*int|oint|lim|frac\{d\}|frac\{\\partial)(?![a-zA-Z])")


class NeedsAlgebra(Exception):
    """The texts alone do not decide the comparison."""


async def math_accuracy(answer: str, gold: Sequence[str]) -> float:
    """1 if `answer` equals one of the `gold` answers as mathematics, otherwise 0.

    Raises:
        BrokenToolError: the comparing process cannot be started.
    """
    for one in gold:
        if await _equal(one, answer):
            return 1.0
    return 0.0


async def solved_math_accuracy(answer: str, question: Question) -> float:
    """`math_accuracy`, but 0 for an answer that is not worked out, such as the question's own words.

    If a gold answer is a plain number, the answer must also be one ("12 * 31 - 5" does not answer "What is 12 * 31 -
    5?"). Otherwise a sum, product, integral, limit or derivative counts only if the gold answer has one, and a formula
    from the question counts only if the gold answer contains it in the same form ("Factor x^2 - 1").

    Raises:
        BrokenToolError: see `math_accuracy`.
    """
    text = question.messages[-1][1]
    solved = [gold for gold in question.answers if worked_out(answer, gold, text)]
    return await math_accuracy(answer, solved)


def worked_out(answer: str, gold: str, question: str) -> bool:
    """Whether `answer` is more than a part of the question, seen against this gold answer."""
    ours, theirs = clean(answer), clean(gold)
    if not ours or not theirs or _packed(ours) == _packed(theirs):
        return True
    if _is_number(theirs):
        return _is_number(ours)
    if _UNSOLVED.search(ours) and not _UNSOLVED.search(theirs):
        return False
    formula = any(c in ours for c in "+-*/^\\=<>") and not _is_number(ours) and not forms.WORDS.fullmatch(ours)
    return not (formula and _packed(ours) in _packed(spelled(question)))


async def _equal(gold: str, answer: str) -> bool:
    try:
        return forms.equal(gold, answer, _refuse)
    except NeedsAlgebra:
        return await _equal_by_algebra(gold, answer)


async def _equal_by_algebra(gold: str, answer: str) -> bool:
    worker = shared_server(SETUP)
    for lane in LANES:
        code = _COMPARE.format(gold=gold, answer=answer, processor_s=lane.processor_s)
        async with place(lane, lane.places):
            reply = await worker.run(code, lane.wall_s, MEMORY_MB)
        if reply.status != CallStatus.TIMEOUT and reply.signal != signal.SIGPROF:
            return reply.status == CallStatus.OK and reply.output.strip() == "equal"
    return False


def _refuse(gold: str, answer: str) -> bool:
    raise NeedsAlgebra


def _is_number(text: str) -> bool:
    """Whether a cleaned answer is a plain number, or several; it may follow a name ("x = 5")."""
    parts = (item.rpartition("=")[2].strip() for item in forms.read_form(text).items)
    return all(read_quantity(part).number is not None for part in parts)


def _packed(text: str) -> str:
    return text.replace(" ", "")
