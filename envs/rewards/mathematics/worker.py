"""The code of the worker process of `accuracy`: `warm_up` runs once, `compare` in a forked process per comparison."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

from . import algebra, forms, restating

#: Comparisons that make SymPy load its lazy parts.
_WARM_UPS = (("\\frac{1}{2}+\\sqrt{3}", "x+2"), ("x>1", "x<2"), ("(1,2]", "[1,3]"), ("\\pi", "3"))
_RECURSION_LIMIT = 2000


def warm_up() -> None:
    """Does in advance the slow work of the first comparisons."""
    logging.disable()
    for gold, answer in _WARM_UPS:
        algebra.same(gold, answer)


def compare(gold: str, answer: str, formulas: Sequence[str], processor_s: float) -> None:
    """Prints "equal" or "different", and after "equal" perhaps "restated" (see `restating`).

    Expressions that cannot be compared count as different. All work that takes longer for some answers than for others
    is done before "equal".

    Args:
        formulas: of the question.
        processor_s: seconds of processor time after which SIGPROF ends this process.
    """
    sys.setrecursionlimit(_RECURSION_LIMIT)
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    pairs: list[tuple[str, str]] = []

    def same(one: str, other: str) -> bool:
        found = algebra.same(one, other)
        pairs.extend([(one, other)] * found)
        return found

    try:
        equal = forms.equal(gold, answer, same)
    except Exception:
        equal = False
    checks = [restating.restates(*pair, formulas) for pair in pairs if equal and formulas]
    for check in checks:
        with contextlib.suppress(Exception):  # What the guard cannot read, it does not forbid.
            next(check)
    print("equal" if equal else "different", flush=True)
    if any(any(check) for check in checks):
        print("restated")
