"""Equality of single expressions by math-verify and SymPy. Runs only in worker processes: it may never end."""

from __future__ import annotations

import re
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.logic import And
from math_verify import verify
from sympy.core.relational import Eq, Ge, Gt, Le, Lt, Ne, Relational

from .text import split

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_CUP = re.compile(r"\\cup(?![A-Za-z])")
#: An index of a number or a bracket, or a prime of a name: the parser leaves both out.
_INDEXED, _PRIME = re.compile(r"[\d)}] ?_"), re.compile(r"(?<=[A-Za-z])'(?!')")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?) ?\^ ?\{?\\circ\}?", re.ASCII)
_DECIMAL = re.compile(r"(\d*)\.(\d+)", re.ASCII)
#: math-verify compares numbers to 15 decimals: 10^{-20} would be 2 * 10^{-20}. If it calls two expressions equal, this
#: module evaluates them to this many digits at these values of the variables, and they must agree relatively.
_DIGITS, _TOLERANCE = 40, sympy.Rational(1, 10**25)
_SAMPLES = (sympy.Rational(17, 13), sympy.Rational(-31, 29))


def same(gold: str, answer: str) -> bool:
    """Whether two expressions, relations or sets in LaTeX are equal.

    Raises:
        Exception: the parser's or SymPy's error if they cannot read an expression; the caller takes it as "not equal".
    """
    return equal(parse(gold), parse(answer))


def equal(theirs: Any, ours: Any) -> bool:
    """Whether two results of `parse` are equal; raises as `same` does."""
    if _is_relation(theirs) or _is_relation(ours):
        return _same_relation(theirs, ours)
    are_sets = isinstance(theirs, sympy.Set) or isinstance(ours, sympy.Set)
    return bool(verify(theirs, ours, timeout_seconds=None)) and (are_sets or not _differ(theirs, ours))


def parse(latex: str) -> sympy.Basic:
    """The SymPy object of an expression; decimals are exact, variables are real, i is the imaginary unit.

    Inequalities in a union are the sets of numbers for which they hold.
    """
    parts = split(latex, _CUP)
    if len(parts) > 1 and re.search(r"[<>]|\\[lg]e(?![a-zA-Z])", latex):
        return sympy.Union(*(_as_set(parse(part)) for part in parts))
    latex = _PRIME.sub("_{prime}", latex)
    if _INDEXED.search(latex) or "'" in latex:
        raise ValueError("an index or a prime of a value")
    latex = _DEGREES.sub(r"{(\\frac{\1\\pi}{180})}", latex)
    exact = _DECIMAL.sub(lambda m: rf"{{\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}}}", latex)
    parsed = latex2sympy(
        normalize_latex(exact, _NORMALIZATION), is_real=True, normalization_config=None, conversion_config=_CONVERSION
    )
    units = {symbol: sympy.I for symbol in parsed.free_symbols if symbol.name == "i"}
    with sympy.evaluate(False):  # `restating` sees what is left to do.
        return parsed.xreplace(units) if units else parsed


def _differ(gold: Any, answer: Any) -> bool:
    """Whether numbers show that two expressions differ."""
    if isinstance(gold, sympy.MatrixBase):
        return any(_differ(g, a) for g, a in zip(gold, answer, strict=True))
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    for sample in _SAMPLES:
        values = {symbol: sample + k for k, symbol in enumerate(symbols)}
        ours, theirs = (sympy.N(one.subs(values), _DIGITS) for one in (answer, gold))
        if not (ours.is_number and theirs.is_number and ours.is_finite and theirs.is_finite):
            continue
        if abs(ours - theirs) > _TOLERANCE * max(abs(ours), abs(theirs)):
            return True
        if not symbols:
            break
    return False


def _is_relation(one: Any) -> bool:
    return isinstance(one, (Relational, And))


def _same_relation(gold: Any, answer: Any) -> bool:
    if not (_is_relation(gold) and _is_relation(answer)):
        theirs, ours = _as_set(gold), _as_set(answer)
        return theirs is not None and ours is not None and bool(verify(theirs, ours, timeout_seconds=None))
    theirs, ours = _constraints(gold), _constraints(answer)
    if len(theirs) != len(ours):
        return False
    for kind, difference in theirs:
        found = next((c for c in ours if c[0] == kind and _proportional(difference, c[1], kind)), None)
        if found is None:
            return False
        ours.remove(found)
    return True


def _as_set(one: Any) -> sympy.Set | None:
    """The numbers that a set holds, or for which a condition on one variable is true."""
    if isinstance(one, sympy.Set):
        return one
    parts = getattr(one, "_unsorted_args", [one])
    if not _is_relation(one) or len(one.free_symbols) != 1 or not all(isinstance(p, Relational) for p in parts):
        return None
    return sympy.Intersection(*(sympy.Rel(p.lhs, p.rhs, p.rel_op).as_set() for p in parts))


def _constraints(relation: Any) -> list[tuple[str, sympy.Basic]]:
    """The relation's parts as (kind, left - right), with every inequality turned to "less"."""
    result = []
    for part in getattr(relation, "_unsorted_args", [relation]):
        difference = part.lhs - part.rhs
        kind = {Eq: "=", Ne: "!=", Lt: "<", Le: "<=", Gt: "<", Ge: "<="}[type(part)]
        result.append((kind, -difference if isinstance(part, (Gt, Ge)) else difference))
    return result


def _proportional(one: Any, other: Any, kind: str) -> bool:
    """Whether one is a constant times the other; for inequalities the constant must be positive."""
    factor = sympy.simplify(one / other)
    if not factor.is_number or not factor.is_finite or factor == 0:
        return False
    return kind in ("=", "!=") or bool(factor > 0)
