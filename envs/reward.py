"""The hierarchical reward (docs/design.md, section 1) and how answers are compared."""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Awaitable, Callable, Collection, Sequence
from fractions import Fraction

from rllib_arpo.envs.tools.worker import shared_worker

BAD_FORMAT_REWARD = -1.0
#: Added to a right answer when every one of these tools was really executed (status OK) on the path.
TOOL_BONUS = 0.1
BONUS_TOOLS = frozenset({"search", "python"})
#: Seconds and megabytes for one symbolic comparison; one that needs more counts as "not equal".
VERIFY_TIMEOUT_S = 5.0
VERIFY_MEMORY_MB = 1024

#: Warms up math-verify's parser, which takes 0.1 s at its first use.
_VERIFY_SETUP = """
import logging
logging.disable()
from math_verify import parse, verify
verify(parse("$\\frac{1}{2}+\\sqrt{3}$"), parse("$x$"))
"""
_VERIFY = """
import sys
from math_verify import parse, verify
def read(text):
    return parse("$" + text + "$", parsing_timeout=None)
gold, answer = {gold!r}, {answer!r}
sys.setrecursionlimit(2000)
try:
    print("equal" if verify(read(gold), read(answer), timeout_seconds=None) else "different")
except Exception:
    print("different")
"""
#: Python refuses to read integers of more than 4,300 digits; nobody writes answers of this length.
_MAX_NUMBER_CHARS = 200
_DOLLAR = re.compile(r"(?<!\\)\$")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_SLASH = re.compile(r"([+-]?\d+)/(\d+)")
_FRAC = re.compile(r"([+-]?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def hierarchical_reward(format_valid: bool, accuracy: float, executed: Collection[str]) -> float:
    """-1 for bad format; 0 for a wrong answer; accuracy + 0.1 * [search AND python were executed] for a right one.

    Args:
        accuracy: in [0, 1].
        executed: names of the tools that ran without an error on the path.
    """
    if not format_valid:
        return BAD_FORMAT_REWARD
    return accuracy + TOOL_BONUS * (accuracy > 0 and executed >= BONUS_TOOLS)


async def math_accuracy(answer: str, gold: Sequence[str]) -> float:
    """1 if `answer` equals one of the `gold` answers as mathematics, else 0.

    Numbers are compared exactly, without leaving the process; everything else goes to math-verify, in a process that
    is killed when it takes too long. Whatever goes wrong with a comparison means "not equal": a policy must not be able
    to take itself out of the training with an answer that math-verify chokes on.

    Raises:
        BrokenToolError: the comparing process cannot be started.
    """
    for one in gold:
        if await _math_equal(answer, one):
            return 1.0
    return 0.0


async def _math_equal(answer: str, gold: str) -> bool:
    ours, theirs = as_number(answer), as_number(gold)
    if ours is not None and theirs is not None:
        return ours == theirs
    if "".join(answer.split()) == "".join(gold.split()):
        return True
    worker = shared_worker(_VERIFY_SETUP)
    # A dollar sign would open a second formula: an answer must not be several answers.
    gold, answer = (_DOLLAR.sub(" ", text) for text in (gold, answer))
    reply = await worker.run(_VERIFY.format(gold=gold, answer=answer), VERIFY_TIMEOUT_S, VERIFY_MEMORY_MB)
    return reply.status == "ok" and reply.output.strip() == "equal"


def as_number(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal, a fraction ("1/2", "\\frac{1}{2}"), with LaTeX's spaces and thousands
    separators taken off; None for anything else."""
    if len(text) > _MAX_NUMBER_CHARS:
        return None
    plain = re.sub(r"\\[!,;: ]|\s|\$", "", text.replace("{,}", ",")).rstrip(".").replace("−", "-")
    if _THOUSANDS.fullmatch(plain):
        plain = plain.replace(",", "")
    if _NUMBER.fullmatch(plain):
        return Fraction(plain)
    if match := _SLASH.fullmatch(plain):
        return Fraction(int(match[1]), int(match[2])) if int(match[2]) else None
    if match := _FRAC.fullmatch(plain):
        value = Fraction(int(match[2]), int(match[3])) if int(match[3]) else None
        return value if value is None or match[1] != "-" else -value
    return None


async def f1_accuracy(answer: str, gold: Sequence[str]) -> float:
    """The best token F1 of `answer` over the aliases in `gold` (SQuAD's measure)."""
    return max(token_f1(answer, alias) for alias in gold)


async def exact_match_accuracy(answer: str, gold: Sequence[str]) -> float:
    """1 if `answer` equals one of the aliases in `gold` after SQuAD's normalisation, else 0."""
    return float(any(normalize_text(answer) == normalize_text(alias) for alias in gold))


def normalize_text(text: str) -> str:
    """SQuAD's normalisation: lower case, without punctuation, articles and repeated blanks (rajpurkar et al., 2016).

    A text that consists of these alone is only lowered, so that "The The" is not equal to "!".
    """
    lowered = text.lower()
    bare = "".join(c for c in lowered if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", bare).split()) or " ".join(lowered.split())


def token_f1(answer: str, gold: str) -> float:
    """Token F1 after `normalize_text`, in [0, 1]; a yes/no answer counts only as a whole (as HotpotQA has it)."""
    ours, theirs = normalize_text(answer), normalize_text(gold)
    if ours != theirs and (ours in _CLOSED_ANSWERS or theirs in _CLOSED_ANSWERS):
        return 0.0
    ours, theirs = ours.split(), theirs.split()
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


Accuracy = Callable[[str, Sequence[str]], Awaitable[float]]
MATH, QA = "math", "qa"
#: How answers to questions of knowledge are compared (`env_config["qa_metric"]`).
QA_METRICS: dict[str, Accuracy] = {"f1": f1_accuracy, "exact_match": exact_match_accuracy}


def accuracy_of(ability: str, qa_metric: str = "f1") -> Accuracy:
    """The comparison for a question's ability: symbolic equality for "math" (never F1), `qa_metric` for "qa"."""
    return {MATH: math_accuracy, QA: QA_METRICS[qa_metric]}[ability]
