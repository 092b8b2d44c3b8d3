"""Answers in mathematics: symbolic equality by math-verify, in processes that can be killed.

What equality means is said in `math_forms`. Plain numbers, words and structures that differ are decided in this
process; what needs algebra goes to a worker process, which never gets more than its share of time, memory and
processors: whatever goes wrong with a comparison means "not equal". A policy must not be able to take itself out of the
training with an answer that SymPy chokes on, nor to delay the verdicts of its neighbours.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rllib_arpo.envs.per_loop import PerLoop
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import math_forms
from rllib_arpo.envs.rewards.math_text import clean, read_quantity, spelled
from rllib_arpo.envs.sandbox.fork_server import CallStatus, shared_server

#: Megabytes of a comparison beyond what the loaded modules take.
MEMORY_MB = 256


@dataclass(frozen=True, slots=True)
class Lane:
    """Limits of a comparison, and how many run at once.

    The processor time stops what computes too long. The wall time leaves room for others at work, since engine, learner
    and tools share the processors with it, and is the promise that a verdict does not take longer.
    """

    processor_s: float
    wall_s: float
    places: int


_CORES = len(os.sched_getaffinity(0))
#: All comparisons of GSM8K's and MATH500's answers with each other need less than 0.3 s; 99 % less than 0.1 s. What is
#: not done in the first lane is begun again in the second, where it is in nobody's way. Both take less than 2 s.
LANES = (Lane(0.15, 0.8, 2 * _CORES), Lane(0.6, 1.1, max(1, _CORES // 2)))

_PACKAGE = "rllib_arpo.envs.rewards"
#: The worker gets these modules as text: it does not import this package, which would bring Ray along.
_MODULES = ("math_text", "math_forms", "math_algebra")
_SETUP = """
import logging, sys, types
logging.disable()
for name in ("rllib_arpo", "rllib_arpo.envs", "rllib_arpo.envs.rewards"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
from rllib_arpo.envs.rewards.math_algebra import same
for pair in (("\\\\frac{{1}}{{2}}+\\\\sqrt{{3}}", "x+2"), ("x>1", "x<2"), ("(1,2]", "[1,3]"), ("\\\\pi", "3")):
    same(*pair)
"""
_COMPARE = """
import signal, sys
from rllib_arpo.envs.rewards import math_algebra, math_forms
sys.setrecursionlimit(2000)
signal.setitimer(signal.ITIMER_PROF, {processor_s})
try:
    print("equal" if math_forms.equal({gold!r}, {answer!r}, math_algebra.same) else "different")
except Exception:
    print("different")
"""
_UNSOLVED = re.compile(r"\\(?:sum|prod|i*int|oint|lim|frac\{d\}|frac\{\\partial)(?![a-zA-Z])")


class NeedsAlgebra(Exception):
    """The comparison cannot be decided by looking at the text."""


async def math_accuracy(answer: str, gold: Sequence[str]) -> float:
    """1 if `answer` equals one of the `gold` answers as mathematics, else 0.

    Raises:
        BrokenToolError: the comparing process cannot be started.
    """
    for one in gold:
        if await _equal(one, answer):
            return 1.0
    return 0.0


async def solved_math_accuracy(answer: str, question: Question) -> float:
    """`math_accuracy`, but 0 for an answer that is not worked out: the question's own words in the box are no answer.

    Where a gold answer is a plain number, the answer must be one, too ("12 * 31 - 5" is no answer to "What is
    12 * 31 - 5?"). Elsewhere a sum, product, integral, limit or derivative counts only against a gold that has one, and
    a formula that stands in the question only if it stands in the gold like that ("Factor x^2 - 1").

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
    formula = any(c in ours for c in "+-*/^\\=<>") and not _is_number(ours) and not math_forms.WORDS.fullmatch(ours)
    return not (formula and _packed(ours) in _packed(spelled(question)))


async def _equal(gold: str, answer: str) -> bool:
    try:
        return math_forms.equal(gold, answer, _refuse)
    except NeedsAlgebra:
        return await _equal_by_algebra(gold, answer)


async def _equal_by_algebra(gold: str, answer: str) -> bool:
    worker = shared_server(_setup())
    for lane in LANES:
        code = _COMPARE.format(gold=gold, answer=answer, processor_s=lane.processor_s)
        async with _place(lane):
            reply = await worker.run(code, lane.wall_s, MEMORY_MB)
        if reply.status != CallStatus.TIMEOUT and reply.signal != signal.SIGPROF:
            return reply.status == CallStatus.OK and reply.output.strip() == "equal"
    return False


def _refuse(gold: str, answer: str) -> bool:
    raise NeedsAlgebra


def _is_number(text: str) -> bool:
    """Whether a cleaned answer is a plain number, or several; a name before it ("x = 5") does not matter."""
    parts = (item.rpartition("=")[2].strip() for item in math_forms.read_form(text).items)
    return all(read_quantity(part).number is not None for part in parts)


def _packed(text: str) -> str:
    return text.replace(" ", "")


def _place(lane: Lane) -> asyncio.Semaphore:
    """The places of a lane in the running event loop."""
    return _PLACES.get().setdefault(lane, asyncio.Semaphore(lane.places))


#: Lane -> the places that are free.
_PLACES: PerLoop[dict[Lane, asyncio.Semaphore]] = PerLoop(dict)


@functools.cache
def _setup() -> str:
    """What a worker runs once: the modules, and a few comparisons that load what SymPy loads late."""
    folder = Path(__file__).parent
    sources = {f"{_PACKAGE}.{name}": (folder / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES}
    return _SETUP.format(sources=sources)
