"""The errors of environments that are not bugs: the class says who made the mistake.

A `ToolError` is the model's mistake: it reads the message and goes on. A `BrokenToolError` is the environment's: the
trajectory is masked and counted. A `DataError` is the user's: it ends the run with one sentence.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator
from typing import Any

from rllib_arpo.envs.support.texts import first_line


class ToolError(Exception):
    """The model's call failed; the message becomes the observation, with `ToolStatus.ERROR`."""


class RaisedToolError(ToolError):
    """A user's function or method raised an exception that is none of these; the model reads its message.

    Attributes:
        kinds: the `class_names` of the exception.
    """

    def __init__(self, error: BaseException):
        text = repr(error) if isinstance(error, SystemExit) else str(error)
        super().__init__(text or type(error).__name__)
        self.kinds = class_names(error)


class TransientToolError(ToolError):
    """The call failed for a temporary reason (a busy server, a lost connection); the caller may repeat it."""


class BrokenToolError(Exception):
    """A tool or a reward cannot be used, whatever the model writes: `StopReason.BROKEN_TOOL` ends the trajectory."""


class UnreadVerdict(BrokenToolError):
    """A judge has answered, but its verdict cannot be read: `StopReason.UNREAD_VERDICT` ends the trajectory."""


class ForkRefused(Exception):
    """`step_agent` raises this in a fork's first turn if the fork differs from its parent: it leaves the tree."""


class DataError(ValueError):
    """Data is missing or wrong; the message names the file and the row (counted from 0), if there are any."""


class ContractError(DataError):
    """The user's code, a reward or an environment, raised or returned something that its contract does not allow."""


def class_names(error: BaseException) -> tuple[str, ...]:
    """The names of the exception's class and its bases, below `Exception`."""
    return tuple(kind.__name__ for kind in type(error).__mro__ if kind not in Exception.__mro__) or ("Exception",)


@contextlib.contextmanager
def as_tool_error(beginning: str = "") -> Iterator[None]:
    """Turns whatever the block raises into the model's mistake: a `ToolError` whose message begins with `beginning`."""
    try:
        yield
    except ToolError:
        raise
    except Exception as error:
        raise ToolError(f"{beginning}{first_line(error)}.") from error


def finite(value: object, what: str) -> float:
    """`value` as a float.

    Args:
        value: a `numbers.Real`, or a scalar or array without dimensions of numpy or torch.
        what: the beginning of the error's sentence: "The reward 'mine'".

    Raises:
        ContractError: it is not a finite number.
    """
    scalar: Any = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    try:
        number = float(scalar) if isinstance(scalar, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ContractError(f"{what} must be a finite number, not {value!r:.80}.")
    return number


def is_transient(status: int) -> bool:
    """Whether the same HTTP request may succeed later: timeouts, too many requests, errors of the server."""
    return status in (408, 425, 429) or status >= 500
