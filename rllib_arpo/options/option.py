"""An option: the default, the documentation and the rule of one keyword of `ARPOConfig`; rules for single values."""

import copy
import inspect
import reprlib
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeVar


class _Short(reprlib.Repr):
    """Short texts of values, without addresses in memory."""

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

    The words are a function where they change: a registry may grow after this package was imported.
    """

    words: str | Callable[[], str]
    test: Callable[[Any], bool]

    def check(self, key: str, value: Any) -> None:
        """Raises ValueError, one sentence that names the key, unless `value` keeps the rule."""
        if not self.test(value):
            words = self.words() if callable(self.words) else self.words
            raise ValueError(f"{key}={shown(value)}: must be {words}.")


def shown(value: Any) -> str:
    """`value` as an error message shows it."""
    return _Short().repr(value)


def one_of(*values: Any) -> Rule:
    """Texts, numbers or switches. True equals 1, but does not count as a number; an array equals nothing."""
    names = ", ".join(map(repr, values))

    def test(value: Any) -> bool:
        is_bool = isinstance(value, bool)
        return isinstance(value, str | Real) and any(
            value == choice and is_bool == isinstance(choice, bool) for choice in values
        )

    return Rule(f"one of {names}", test)


def name_in(registry: Collection[str]) -> Rule:
    """One of the names that the registry has when the value is checked."""
    return Rule(lambda: f"one of {', '.join(map(repr, registry))}", lambda value: _is(value, str) and value in registry)


def at_least(minimum: int) -> Rule:
    return Rule(f"an integer >= {minimum}", lambda value: _is(value, Integral) and value >= minimum)


def number(words: str, test: Callable[[float], bool]) -> Rule:
    """A finite number for which `test` holds."""
    return Rule(words, lambda value: _is(value, Real) and abs(value) <= sys.float_info.max and test(value))


def or_name(rule: Rule, *names: str) -> Rule:
    """A value that keeps `rule`, or one of these names."""
    words = " or ".join([f"{rule.words}", *map(repr, names)])
    return Rule(words, lambda value: (_is(value, str) and value in names) or rule.test(value))


def optional(rule: Rule) -> Rule:
    """None, which means "off" or "as usual", or a value that keeps `rule`."""
    return Rule(rule.words, lambda value: value is None or rule.test(value))


def a_dict(words: str = "a dict", of: Rule | None = None) -> Rule:
    """A dict with names as keys; `of`: the rule of its values."""

    def test(value: Any) -> bool:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value) and _all(of, value.values())

    return Rule(words, test)


def takes(function: Any, number: int) -> bool:
    """Whether this may be called with so many arguments; of some built-in functions nobody knows."""
    try:
        inspect.signature(function).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _all(rule: Rule | None, values: Iterable[Any]) -> bool:
    return rule is None or all(rule.test(value) for value in values)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


POSITIVE = number("a finite number > 0", lambda value: value > 0)
NOT_NEGATIVE = number("a finite number >= 0", lambda value: value >= 0)
PROBABILITY = number("a number in [0, 1]", lambda value: 0 <= value <= 1)
FRACTION = number("a number between 0 and 1", lambda value: 0 < value < 1)
FINITE = number("a finite number", lambda _value: True)
SWITCH = one_of(True, False)


Method = TypeVar("Method", bound=Callable[..., Any])

#: Columns of a generated docstring.
WIDTH = 116


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword of one of `ARPOConfig`'s methods and the attribute of the same name.

    Attributes:
        default: its value in a new configuration, or a function that makes it.
        doc: its meaning, for the docstring of its method.
        rule: the rule that a value must keep by itself; None: `rllib_arpo/validation` checks what no rule can state.
    """

    default: Any
    doc: str
    rule: Rule | None = None

    def new_value(self) -> Any:
        """The default, in a copy of its own."""
        return self.default() if callable(self.default) else copy.deepcopy(self.default)


def documented_by(options: Mapping[str, Option]) -> Callable[[Method], Method]:
    """Appends the options, with their defaults, to a method's docstring."""

    def decorate(method: Method) -> Method:
        entries = [_entry(name, option) for name, option in options.items()]
        method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__ or ""), "", "Args:", *entries])
        return method

    return decorate


def _entry(name: str, option: Option) -> str:
    default = "" if callable(option.default) else f" ({option.default!r})"
    text = f"{name}{default}: {option.doc}"
    return textwrap.fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
