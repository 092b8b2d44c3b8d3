"""Errors for mistakes of the user, which a sentence explains. Bugs need their traceback instead."""

from collections.abc import Iterator
from contextlib import contextmanager

from rllib_arpo.envs.errors import BrokenToolError

#: Exit status of a command or a recipe whose command line, configuration or data are wrong.
WRONG = 2
#: Exit status of a command or a recipe that the user interrupted (SIGINT, SIGTERM).
INTERRUPTED = 130
#: The errors of a configuration's checks: it is wrong, a package is missing, or a tool does not start.
CHECKS = (ValueError, ImportError, BrokenToolError)


class CommandError(Exception):
    """The command line, its data or its output folder is wrong; the message is one sentence."""


@contextmanager
def command_errors(kinds: tuple[type[Exception], ...] = CHECKS) -> Iterator[None]:
    """Turns errors of these kinds into a `CommandError`; the default is for code that checks a configuration."""
    try:
        yield
    except kinds as error:
        raise CommandError(str(error)) from error
