"""Answers are data: no scorer of reasoning-gym may run one as Python.

Four scorers give the answer to `eval`, five to SymPy's parser, which ends in `eval`, too: an answer that is a program
could write its own score. Here both read values and formulas only; whatever else they meet is an error, which the
scorers take for a wrong answer.

Stands alone: the process that scores gets the source of this file, and calls `guard` after reasoning-gym's import.
"""

import ast
import sys

from sympy.parsing import sympy_parser

_VALUES = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load),
    *(ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop),
)
#: What the parser writes around numbers and letters, and what a formula may call. Not `Integral`: the question itself
#: would be an answer.
_NAMES = frozenset({
    "Integer", "Float", "Rational", "Symbol", "Function", "factorial", "factorial2", "pi", "E", "I", "sqrt", "exp",
    "log", "ln", "Abs", "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "asin", "acos",
    "atan", "acot", "asec", "acsc", "asinh", "acosh", "atanh",
})  # fmt: skip


class NotAValueError(ValueError):
    """The text is a program, or no Python."""


def checked(text: str, kinds: tuple[type, ...] = _VALUES, names: frozenset[str] = frozenset()) -> str:
    """`text`, if every part of it is of these kinds and every name one of `names`.

    Raises:
        NotAValueError: it is not.
    """
    try:
        parts = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise NotAValueError(f"no value: {error}") from error
    for part in parts:
        if not isinstance(part, kinds) or (isinstance(part, ast.Name) and part.id not in names):
            raise NotAValueError(f"no value: {type(part).__name__}")
    return text


def eval_value(text: str) -> object:
    """`eval` of numbers, texts, lists and the like, and of arithmetic with them."""
    return eval(checked(text).strip(), {"__builtins__": {}})


def guard() -> None:
    """Puts the two in place, for the whole process."""
    plain = sympy_parser.eval_expr

    def eval_formula(code, local_dict, global_dict):
        checked(code, (*_VALUES, ast.Name, ast.Call), _NAMES | local_dict.keys())
        return plain(code, local_dict, global_dict)

    sympy_parser.eval_expr = eval_formula
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "reasoning_gym":
            module.eval = eval_value
