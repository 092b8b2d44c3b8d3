"""Games of other packages: worlds that take texts and pay for each, and what making them from options needs."""

from __future__ import annotations

import importlib
import inspect
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.worlds.world import Reply, World


class PaidWorld(World):
    """A world whose rewards are those of its replies; the accuracy is their sum, between 0 and 1."""

    takes_text = True

    def __init__(self) -> None:
        self.total = 0.0

    def paid(self, text: str, reward: float, done: bool) -> Reply:
        """The reply to an action that earned `reward`."""
        self.total += float(reward)
        return Reply(text, float(reward), bool(done))

    async def score(self, path: FinishedPath) -> Score | None:
        return Score(0.0, min(max(self.total, 0.0), 1.0))


def seed_of(question: Question) -> int:
    """The seed of the question's row; without one, a number that depends on the question's name alone."""
    seed = question.row.get("seed")
    return zlib.crc32(question.question_id.encode("utf-8", "replace")) if seed is None else int(seed)


def with_options(made: Callable[..., Any], options: dict[str, Any]) -> Callable[[], Any]:
    """Makes a class with keyword arguments.

    Raises:
        ValueError: it does not take them.
    """
    try:
        inspect.signature(made).bind(**options)
    except TypeError as error:
        raise ValueError(f"env_config['world']: {made.__name__}: {first_line(error)}.") from error
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
