"""Finds answers that restate the question: "\\sqrt{12}+0" for "Simplify \\sqrt{12}". Runs only in worker processes.

If a formula of the question equals the gold answer, the question asks for another form of it. The answer may then not
keep what the formula has and the gold answer lacks: a sum (whatever the order and grouping of its terms), a root or
another power, a function, a denominator, a relation. It may not leave work to do that the gold answer has done either
("\\sqrt{3}\\sqrt{4}", "4\\sin(\\pi/3)"). A formula that does not equal the gold answer forbids nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
from sympy.core.relational import Relational

from .algebra import equal, parse

#: Part of an expression -> its size, for a sum its number of terms.
Parts = Mapping[Any, int]


def restates(gold: str, answer: str, formulas: Sequence[str]) -> Iterator[bool]:
    """Yields False when it has read gold and answer, then whether each formula forbids the answer.

    Raises:
        Exception: the parser's or SymPy's error if they cannot read gold or answer.
    """
    expected, given = parse(gold), parse(answer)
    theirs, ours = parts(expected), parts(given)
    unfinished = any(more > enough for more, enough in zip(_to_do(given), _to_do(expected), strict=True))
    yield False
    for formula in formulas:
        try:
            asked = parse(formula)
            found = parts(asked)
            kept = [part for part in ours if part in found and _unsolved(theirs.get(part), found[part], ours[part])]
            yield (unfinished or bool(kept)) and equal(expected, asked)
        except Exception:  # a formula that is not read forbids nothing
            yield False


def _unsolved(theirs: int | None, asked: int, ours: int) -> bool:
    return theirs is None or theirs < asked <= ours


def parts(expression: Any) -> Parts:
    """The sums, powers, products of numbers, functions and relations in an expression that was not evaluated."""
    found: dict[Any, int] = {}
    for node in _nodes(expression):
        if isinstance(node, sympy.Add):
            terms = [term for term in _flat(node, sympy.Add) if term != 0]
            if len(terms) > 1:
                key = "sum", _monic(node)
                found[key] = max(found.get(key, 0), len(terms))
        elif isinstance(node, (sympy.Mul, sympy.Pow)):
            found.update(dict.fromkeys(_of_product(node), 1))
        elif isinstance(node, Relational):
            found["relation", _monic(sympy.Add(node.lhs, -node.rhs))] = 1
        elif node.args and isinstance(node, (sympy.Function, sympy.Integral, sympy.Sum, sympy.Product)):
            found[type(node).__name__, *(_value(a) for a in node.args)] = 1
    return found


def _nodes(expression: Any) -> Iterator[Any]:
    each = list(expression) if isinstance(expression, sympy.MatrixBase) else [expression]
    return itertools.chain.from_iterable(map(sympy.preorder_traversal, each))


def _to_do(expression: Any) -> tuple[int, bool, bool, bool]:
    """What can be worked out in an expression: its largest radicand; whether it has functions of numbers; whether it
    adds or multiplies whole numbers; whether a side of a relation is neither a number nor a variable."""
    radicand, functions, sums, relations = 0, False, False, False
    for node in _nodes(expression):
        if isinstance(node, sympy.Pow) and node.base.is_number and _value(node.exp).is_integer is False:
            base = _value(node.base)
            radicand = max(radicand, base.p, base.q) if base.is_Rational else radicand
        functions |= isinstance(node, sympy.Function) and node.is_number is not False
        if isinstance(node, (sympy.Add, sympy.Mul)):
            whole = [one for one in _flat(node, type(node)) if one.is_Integer and abs(one) > 1]
            sums |= len(whole) > 1
        relations |= isinstance(node, Relational) and not all(one.is_number or one.is_Symbol for one in node.args)
    return radicand, functions, sums, relations


def _of_product(node: Any) -> Iterator[Any]:
    bases: dict[Any, list[Any]] = {}
    for base, exponent in _factors(node, sympy.Integer(1)):
        bases.setdefault(_monic(base) if isinstance(base, sympy.Add) else _value(base), []).append(exponent)
    whole = [b for b, exponents in bases.items() for e in exponents if b.is_Integer and e == 1 and abs(b) != 1]
    if len(whole) > 1:
        yield "numbers", *sorted(whole)
    for base, exponents in bases.items():
        if not base.is_number and len(exponents) > 1:
            yield "repeated", base, *sorted(exponents, key=str)
        for exponent in exponents:
            if exponent != 1 and base != 1 and not (base.is_Rational and exponent == -1):
                yield "power", base, exponent


def _factors(node: Any, exponent: Any) -> Iterator[tuple[Any, Any]]:
    """(base, exponent) of each factor in a product of powers of products."""
    if isinstance(node, sympy.Mul):
        for factor in node.args:
            yield from _factors(factor, exponent)
    elif isinstance(node, sympy.Pow) and (exponent.is_integer or node.base.is_number):
        power, base = _value(node.exp * exponent), _value(node.base)
        yield from [(base, power)] if base.is_Rational and not power.is_integer else _factors(node.base, power)
    else:
        yield node, exponent


def _flat(node: Any, kind: type) -> Iterator[Any]:
    for one in node.args:
        yield from _flat(one, kind) if isinstance(one, kind) else (one,)


def _monic(node: Any) -> Any:
    """The value of a sum but for a rational factor."""
    value = _value(node)
    value = value if value.is_number else value.primitive()[1]
    return -value if value.could_extract_minus_sign() else value


def _value(node: Any) -> Any:
    value = node.doit()
    return sympy.expand(value) if isinstance(value, sympy.Expr) else value  # Limits of a sum are a Tuple.
