"""What making worlds of other packages' games needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.texts import seed_of_name
from rllib_arpo.envs.support.validation import check_options


def seed_of(question: Question) -> int:
    """The seed of the question's row; without one, a number that depends on the question's name alone."""
    seed = question.row.get("seed")
    return seed_of_name(question.question_id) if seed is None else int(seed)


def with_options(made: Callable[..., Any], options: dict[str, Any]) -> Callable[[], Any]:
    """Makes a class with keyword arguments.

    Raises:
        ValueError: it does not take them.
    """
    check_options(made, options, f"env_config['world']: {getattr(made, '__name__', 'options')}")
    return partial(made, **options)


def package_of_games(name: str) -> Any:
    """A package of the extra "games".

    Raises:
        ValueError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"env_config['world'] needs {name} (pip install rllib-arpo[games]): {error}.") from error


def is_class_of(found: Any, package: str, name: str) -> bool:
    """Whether `found` is derived from a class of a package, which is not imported for that."""
    base = getattr(sys.modules.get(package), name, None)
    return isinstance(found, type) and base is not None and issubclass(found, base)
