"""Shows a run's own lines on the terminal, without control characters, and sends all other output to a log file.

The recipes open a `RunTerminal`. Without one `say` prints.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

logger = logging.getLogger("rllib_arpo")

#: The format of the package's warnings.
WARNING_FORMAT = "%(levelname)s rllib_arpo: %(message)s"
STDOUT, STDERR = 1, 2
#: Characters that move the cursor, colour text, end a line, change the writing direction, or cannot be encoded.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)

_open: RunTerminal | None = None


def printable(text: str) -> str:
    """`text`, for example a model's, with Python's escapes for control characters other than \\n and \\t."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def short_path(path: str | Path) -> str:
    """The path without the current folder, or with "~" for the home folder."""
    for folder, name in ((Path.cwd(), ""), (Path.home(), "~/")):
        if Path(path).is_relative_to(folder):
            return f"{name}{Path(path).relative_to(folder)}"
    return str(path)


def say(text: str) -> None:
    """Shows lines on the terminal."""
    if _open is None:
        print(printable(text))
    else:
        _open.say(text)


def say_once(text: str) -> None:
    """Shows lines only once in a run; the log has them every time."""
    if _open is None:
        print(printable(text))
    else:
        _open.warn(text)


def about(label: str, text: str) -> str:
    """A line of a run's first lines, with its label."""
    return f"{label:<9} {text}"


def open_terminal() -> RunTerminal | None:
    """The open terminal of this process; None if there is none, and output goes to the usual places."""
    return _open


class RunTerminal:
    """While it is open, the terminal shows only its lines. The log has these and all other output of this process.

    The log also has the output of child processes. An error that ends the run gets a note with the log's name.

    Args:
        log: a file; an existing one continues.
    """

    def __init__(self, log: Path):
        self.log = log
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    def __enter__(self) -> RunTerminal:
        global _open
        encoding = sys.stdout.encoding or "utf-8"
        self._screen = os.fdopen(os.dup(STDOUT), "w", buffering=1, encoding=encoding, errors="replace")
        self._kept = _redirect(self.log)
        self._closed = False
        self._handler = _WarningsHandler(self)
        logger.addHandler(self._handler)
        _open = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _open
        _open = None
        logger.removeHandler(self._handler)
        with self._lock, suppress(OSError):
            self._closed = True
            self._screen.close()
        _undo_redirection(self._kept)
        if error is not None:
            error.add_note(f"The log of the run is {self.log}.")

    def say(self, text: str) -> None:
        """Shows lines. The run goes on if the terminal is gone."""
        text = printable(text)
        with self._lock, suppress(OSError):
            with suppress(OSError):  # The log's disk is full.
                os.write(STDOUT, f"{text}\n".encode())
            if self._closed:  # A thread may write after the end.
                return
            print(text, file=self._screen)

    def warn(self, text: str) -> None:
        """Shows a warning only once; the log has it every time."""
        with self._lock:
            is_new = text not in self._warned
            self._warned.add(text)
        if is_new:
            self.say(text)
            return
        with suppress(OSError):
            os.write(STDOUT, f"{printable(text)}\n".encode())


class _WarningsHandler(logging.Handler):
    """Shows the package's log messages of this process."""

    def __init__(self, terminal: RunTerminal):
        super().__init__()
        self.setFormatter(logging.Formatter(WARNING_FORMAT))
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        self._terminal.warn(self.format(record))


def _redirect(log: Path) -> tuple[int, int]:
    """Appends standard output and error to a file, native code's as well; returns copies of the old descriptors."""
    log.parent.mkdir(parents=True, exist_ok=True)
    _flush()
    kept = os.dup(STDOUT), os.dup(STDERR)
    with log.open("ab") as file:
        os.dup2(file.fileno(), STDOUT)
        os.dup2(file.fileno(), STDERR)
    return kept


def _undo_redirection(kept: tuple[int, int]) -> None:
    _flush()
    for stream, before in zip((STDOUT, STDERR), kept, strict=True):
        os.dup2(before, stream)
        os.close(before)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
