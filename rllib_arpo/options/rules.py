"""Rules for single values, and their words in error messages."""

import difflib
import inspect
import reprlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any


class _Short(reprlib.Repr):
    """Prints values in short, without memory addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 120
        self.maxdict = 3

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, type) or hasattr(x, "__name__"):
            return x.__name__
        text = super().repr_instance(x, level)
        return f"<{type(x).__name__}>" if " object at 0x" in text else text


@dataclass(frozen=True, slots=True)
class Rule:
    """A test of a value, and the words that complete the sentence "key=value: must be ...".

    The words may be a function, because a registry can grow after this package was imported.

    Attributes:
        type: the annotation of a keyword with such values, for editors.
    """

    words: str | Callable[[], str]
    test: Callable[[Any], bool]
    type: str = "Any"

    def in_words(self) -> str:
        return self.words() if callable(self.words) else self.words

    def check(self, key: str, value: Any) -> None:
        """Raises a ValueError that names the key, unless `value` keeps the rule."""
        if not self.test(value):
            raise ValueError(f"{key}={shown(value)}: must be {self.in_words()}.")


def shown(value: Any) -> str:
    """The text of `value` in an error message."""
    return _Short().repr(value)


def did_you_mean(key: str, known: Sequence[str]) -> str:
    """A question for the end of an error message; empty if no known key is similar."""
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def one_of(*values: Any) -> Rule:
    """Texts, numbers or switches. Unlike in Python, True does not equal 1. An array equals nothing."""
    names = ", ".join(map(repr, values))

    def test(value: Any) -> bool:
        is_bool = isinstance(value, bool)
        return isinstance(value, str | Real) and any(
            value == choice and is_bool == isinstance(choice, bool) for choice in values
        )

    return Rule(f"one of {names}", test, " | ".join(sorted({type(value).__name__ for value in values})))


def name_in(registry: Collection[str]) -> Rule:
    """A name in the registry, as it is when the value is checked."""
    return Rule(
        lambda: f"one of {', '.join(map(repr, registry))}", lambda value: _is(value, str) and value in registry, "str"
    )


def at_least(minimum: int) -> Rule:
    return Rule(f"an integer >= {minimum}", lambda value: _is(value, Integral) and value >= minimum, "int")


def number(words: str, test: Callable[[float], bool]) -> Rule:
    """A finite number for which `test` holds."""
    return Rule(words, lambda value: _is(value, Real) and abs(value) <= sys.float_info.max and test(value), "float")


def or_name(rule: Rule, *names: str) -> Rule:
    """A value that keeps `rule`, or one of these names."""
    words = " or ".join([rule.in_words(), *map(repr, names)])
    return Rule(words, lambda value: (_is(value, str) and value in names) or rule.test(value), f"{rule.type} | str")


def optional(rule: Rule) -> Rule:
    """None, which means "off" or "as usual", or a value that keeps `rule`."""
    return Rule(
        lambda: f"{rule.in_words()}, or None", lambda value: value is None or rule.test(value), f"{rule.type} | None"
    )


def a_dict(words: str = "a dict", of: Rule | None = None) -> Rule:
    """A dict with names as keys; `of`: the rule of its values."""

    def test(value: Any) -> bool:
        has_names = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        return has_names and (of is None or all(map(of.test, value.values())))

    return Rule(words, test, "dict[str, Any]")


def takes(function: Any, number: int) -> bool:
    """Whether this accepts that many arguments; True for built-in functions that have no signature."""
    try:
        inspect.signature(function).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


POSITIVE = number("a finite number > 0", lambda value: value > 0)
NOT_NEGATIVE = number("a finite number >= 0", lambda value: value >= 0)
PROBABILITY = number("a number in [0, 1]", lambda value: 0 <= value <= 1)
FINITE = number("a finite number", lambda _value: True)
#: What somebody else checks.
ANY = Rule("anything", lambda _value: True)
SWITCH = one_of(True, False)
COUNT = at_least(0)
#: NumPy and the engines accept these seeds.
SEED = Rule("an integer from 0 to 2**32 - 1", lambda value: COUNT.test(value) and value < 1 << 32, "int")
