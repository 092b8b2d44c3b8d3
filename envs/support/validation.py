"""One-sentence messages for wrong configurations and wrong data."""

from __future__ import annotations

import difflib
import importlib
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rllib_arpo.envs.support.texts import first_line


def check_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises a ValueError for the first of `names` that is not in `known`, with the nearest known name.

    Args:
        what: the kind of name, e.g. "env_config key".
    """
    known = sorted(known)
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}."
        raise ValueError(f"Unknown {what} {name!r}: {hint}")


def check_count(key: str, value: Any, minimum: int) -> None:
    """Raises a ValueError that names the key of `env_config`, unless the value is an integer that is large enough."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"env_config[{key!r}] must be an integer >= {minimum}, not {value!r}.")


def import_named(name: str, key: str) -> Any:
    """The object that "module:attribute" names.

    Args:
        key: the key of `env_config` that has the name.

    Raises:
        ValueError: it cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # The user's module may raise anything.
        raise ValueError(f"env_config[{key!r}]: {name!r} cannot be imported ({error}).") from error


def check_options(made: Callable[..., Any], options: Mapping[str, Any], what: str) -> None:
    """Raises a ValueError, which begins with `what`, unless `options` can be the keyword arguments of `made`."""
    try:
        inspect.signature(made).bind(**options)
    except TypeError as error:
        raise ValueError(f"{what}: {first_line(error)}.") from error


def with_options(made: Callable[..., Any], options: Mapping[str, Any], what: str) -> Callable[[], Any]:
    """Calls `made` with these keyword arguments; raises as `check_options` does."""
    check_options(made, options, what)
    return partial(made, **options)


def function_named(given: Any, option: str, what: str = "a function or its name") -> Any:
    """The function in an option of a world, given itself or as "module:function"; None stays None.

    Args:
        what: what the option may be.

    Raises:
        ValueError: it is not a function.
    """
    found = import_named(given, "world") if isinstance(given, str) else given
    if found is not None and not callable(found):
        raise ValueError(f"env_config['world']: {option!r} must be {what}, not {given!r:.80}.")
    return found
