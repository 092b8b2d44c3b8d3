"""Mistakes of whoever calls, which one sentence explains, apart from bugs, which need their traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rllib_arpo.envs.errors import BrokenToolError

#: What checks of a configuration raise: it is wrong, a package is missing, a tool does not start.
CHECKS = (ValueError, ImportError, BrokenToolError)


class CommandError(Exception):
    """The command, its data or its output folder are at fault; the message is one sentence."""


@contextmanager
def command_errors(kinds: tuple[type[Exception], ...] = CHECKS) -> Iterator[None]:
    """Within, errors of these kinds are the command's fault. The default is for what checks, and starts tools."""
    try:
        yield
    except kinds as error:
        raise CommandError(str(error)) from error
