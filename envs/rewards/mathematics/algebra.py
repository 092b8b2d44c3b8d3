"""Equality of single expressions by math-verify and SymPy. Runs only in worker processes: it may never end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.logic import And
from math_verify import verify
from sympy.core.relational import Eq, Ge, Gt, Le, Lt, Ne, Relational

from .brackets import split

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_OPERATIONS = ((re.compile(r"\\cup(?![A-Za-z])"), sympy.Union), (re.compile(r"\\cap(?![A-Za-z])"), sympy.Intersection))
#: An index of a number or a bracket, or a prime of a name: the parser leaves both out.
_INDEXED, _PRIME = re.compile(r"[\d)}] ?_"), re.compile(r"(?<=[A-Za-z])'(?!')")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?) ?\^ ?\{?\\circ\}?", re.ASCII)
_DECIMAL = re.compile(r"(\d*)\.(\d+)", re.ASCII)
#: math-verify compares numbers to 15 decimals, to which 10^{-20} equals 2 * 10^{-20}. So this module also evaluates
#: expressions to this many digits at these values of their variables; they must agree up to this relative error.
_DIGITS, _TOLERANCE = 40, sympy.Rational(1, 10**25)
_SAMPLES = tuple(sympy.Rational(*one) for one in ((17, 13), (-31, 29), (5, 7), (43, 11)))


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
    if verify(theirs, ours, timeout_seconds=None):
        return are_sets or not _differ(theirs, ours)
    return isinstance(theirs, sympy.Expr) and isinstance(ours, sympy.Expr) and _agree_where_real(theirs, ours)


def parse(latex: str) -> sympy.Basic:
    """The SymPy object of an expression; decimals are exact, variables are real, i is the imaginary unit.

    Inequalities in a union or an intersection are the sets of numbers for which they hold.
    """
    for sign, operation in _OPERATIONS if re.search(r"[<>]|\\[lg]e(?![a-zA-Z])", latex) else ():
        if len(parts := split(latex, sign)) > 1:
            return operation(*(_as_set(parse(part)) for part in parts))
    if "\\ldots" in latex:
        raise ValueError("something is left out")
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
    return any(_apart(*pair) for _, pair in _values(gold, answer))


def _agree_where_real(gold: Any, answer: Any) -> bool:
    """Whether two expressions with variables are equal where their roots and logarithms are real.

    There `\\sqrt{1/x}` is `1/\\sqrt{x}`, and `\\ln x^2` is `2\\ln x`; `|x|` is not `x`.
    """
    if not gold.free_symbols | answer.free_symbols:
        return False
    nodes = gold.atoms(sympy.Pow, sympy.log) | answer.atoms(sympy.Pow, sympy.log)
    inner = [node.args[0] for node in nodes if not (node.is_Pow and node.exp.is_integer)]
    real = [
        pair
        for values, pair in _values(gold, answer)
        if all(one.is_real for one in pair) and all(one.subs(values).is_positive for one in inner)
    ]
    return len(real) > 1 and not any(_apart(*pair) for pair in real)


def _apart(one: Any, other: Any) -> bool:
    return bool(abs(one - other) > _TOLERANCE * max(abs(one), abs(other)))


def _values(gold: Any, answer: Any) -> Iterator[tuple[dict[Any, Any], tuple[Any, Any]]]:
    """(values of the variables, finite values of both expressions) at a few points."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    for sample in _SAMPLES if symbols else _SAMPLES[:1]:
        values = {symbol: sample + k for k, symbol in enumerate(symbols)}
        pair = (sympy.N(gold.subs(values), _DIGITS), sympy.N(answer.subs(values), _DIGITS))
        if all(one.is_number and one.is_finite for one in pair):
            yield values, pair


def _is_relation(one: Any) -> bool:
    return isinstance(one, (Relational, And))


def _same_relation(gold: Any, answer: Any) -> bool:
    if not (_is_relation(gold) and _is_relation(answer)):
        theirs, ours = _as_set(gold), _as_set(answer)
        return theirs is not None and ours is not None and bool(verify(theirs, ours, timeout_seconds=None))
    theirs, ours = _constraints(gold), _constraints(answer)
    kinds = {kind for kind, _ in theirs + ours}
    if len(theirs) != len(ours):
        return (
            kinds <= {"<", "<="}
            and gold.free_symbols == answer.free_symbols
            and _as_set(gold) == _as_set(answer) is not None
        )
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
