"""An option: the default, the documentation and the rule of one keyword of `ARPOConfig`, in one place."""

from __future__ import annotations

import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rllib_arpo.options.rules import Rule

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
