"""Answers are data: no scorer of reasoning-gym may run one as Python.

Four scorers pass the answer to `eval`, five to SymPy's parser, which also ends in `eval`: an answer that is a program
could write its own score. This module lets both read only values and formulas; anything else raises an error, which the
scorers count as a wrong answer.

The module stands alone: the scoring process gets its source, and calls `guard` after it has imported reasoning-gym.
"""

import ast
import sys
from typing import Any

from sympy.parsing import sympy_parser

_VALUES = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load),
    *(ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop),
)
#: The names that the parser writes around numbers and letters, and those that a formula may call. `Integral` is not
#: among them, since the question itself would then be an answer.
_NAMES = frozenset({
    "Integer", "Float", "Rational", "Symbol", "Function", "factorial", "factorial2", "pi", "E", "I", "sqrt", "exp",
    "log", "ln", "Abs", "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "asin", "acos",
    "atan", "acot", "asec", "acsc", "asinh", "acosh", "atanh",
})  # fmt: skip


class NotAValueError(ValueError):
    """The text is a program, or not Python."""


def checked(text: str, kinds: tuple[type, ...] = _VALUES, names: frozenset[str] = frozenset()) -> str:
    """`text`, if every part of it is of these kinds and every name one of `names`.

    Raises:
        NotAValueError: the text has other parts.
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
    """Installs `eval_value` and a checked `eval_expr` of the parser, for the whole process."""
    plain = sympy_parser.eval_expr

    def eval_formula(code: str, local_dict: dict[str, Any], global_dict: dict[str, Any]) -> Any:
        checked(code, (*_VALUES, ast.Name, ast.Call), _NAMES | local_dict.keys())
        return plain(code, local_dict, global_dict)

    sympy_parser.eval_expr = eval_formula
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "reasoning_gym":
            vars(module)["eval"] = eval_value
