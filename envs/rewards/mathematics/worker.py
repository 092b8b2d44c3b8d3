"""The code of the worker process of `accuracy`: `warm_up` runs once, `compare` in a forked process per comparison."""

from __future__ import annotations

import logging
import signal
import sys

from . import algebra, forms

#: Comparisons that make SymPy load its lazy parts.
_WARM_UPS = (("\\frac{1}{2}+\\sqrt{3}", "x+2"), ("x>1", "x<2"), ("(1,2]", "[1,3]"), ("\\pi", "3"))
_RECURSION_LIMIT = 2000


def warm_up() -> None:
    """Does in advance the slow work of the first comparisons."""
    logging.disable()
    for gold, answer in _WARM_UPS:
        algebra.same(gold, answer)


def compare(gold: str, answer: str, processor_s: float) -> None:
    """Prints "equal" or "different"; expressions that cannot be compared count as different.

    Args:
        processor_s: seconds of processor time after which SIGPROF ends this process.
    """
    sys.setrecursionlimit(_RECURSION_LIMIT)
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    try:
        print("equal" if forms.equal(gold, answer, algebra.same) else "different")
    except Exception:
        print("different")
