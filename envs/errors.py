"""The errors of environments, apart from bugs: what tools raise, and what is wrong with data."""

from __future__ import annotations


class ToolError(Exception):
    """The call failed; the message becomes the observation, with `ToolStatus.ERROR`."""


class TransientToolError(ToolError):
    """The call failed for a reason that may be gone soon (a busy server, a lost connection): it may be repeated."""


class BrokenToolError(Exception):
    """The tool itself is broken and could not be brought back: the trajectory ends with `StopReason.BROKEN_TOOL`."""


class DataError(ValueError):
    """Data is missing or wrong; the message names the file and the row (counted from 0), where there are any."""


def is_transient(status: int) -> bool:
    """Whether the same HTTP request may succeed later: too slow, too early, too many requests, the server's errors."""
    return status in (408, 425, 429) or status >= 500
