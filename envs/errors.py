"""The errors of environments that are not bugs, by the side that must answer for them.

`ToolError` is the model's: it reads the message, and goes on. `BrokenToolError` is the environment's: the trajectory is
masked and counted. `DataError` is the user's: it ends the run with one sentence.
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


class TransientToolError(ToolError):
    """The call failed for a temporary reason (a busy server, a lost connection); the caller may repeat it."""


class BrokenToolError(Exception):
    """A tool or a reward cannot be used, whatever the model writes: `StopReason.BROKEN_TOOL` ends the trajectory."""


class UnreadVerdict(BrokenToolError):
    """A judge has answered, but its verdict cannot be read: `StopReason.UNREAD_VERDICT` ends the trajectory."""


class ForkRefused(Exception):
    """A fork is not what its parent was: raised by `step_agent` in the fork's first turn, it takes the fork back."""


class DataError(ValueError):
    """Data is missing or wrong; the message names the file and the row (counted from 0), if there are any."""


class ContractError(DataError):
    """Code of the user, a reward or an environment, raised or returned what its contract excludes."""


@contextlib.contextmanager
def as_tool_error(beginning: str = "") -> Iterator[None]:
    """Whatever the block raises is the model's mistake: a `ToolError`, whose message has this beginning."""
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
