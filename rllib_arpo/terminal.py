"""The terminal of a run: the package's own lines, and a live view below them; all other output is in a log file.

The recipes open a `RunTerminal`. Where none is open, `say` prints, and `activity` shows nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

logger = logging.getLogger("rllib_arpo")

#: How the package's warnings look.
WARNING_FORMAT = "%(levelname)s rllib_arpo: %(message)s"
STDOUT, STDERR = 1, 2
#: How often a second the live view is drawn.
FRAMES_PER_SECOND = 2

_open: RunTerminal | None = None


def say(text: str) -> None:
    """Shows lines on the terminal."""
    if _open is None:
        print(text)
    else:
        _open.say(text)


def about(label: str, text: str) -> str:
    """A line of a run's first screen."""
    return f"{label:<9} {text}"


@contextmanager
def activity(line: str, label: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """Says what begins, and shows below the lines that it goes on; call the result with what is done, and the total."""
    terminal = _open
    if terminal is None:
        yield lambda _done, _total: None
        return
    terminal.say(line)
    terminal.show(line, label)
    try:
        yield lambda done, total: terminal.show(line, label, done, total, unit)
    finally:
        terminal.hide(line)


def open_terminal() -> RunTerminal | None:
    """The terminal of this process's run; None: there is none, and all output goes where it always does."""
    return _open


class RunTerminal:
    """While it is open, the terminal shows only its lines; the log has these and what else this process writes.

    What children of the process write is in the log as well. An error that ends the run gets a note that names the log.

    Args:
        log: a file; it is continued if it exists.
        live: show activities below the lines, if standard output is a terminal.
    """

    def __init__(self, log: Path, *, live: bool):
        self.log = log
        self.live = live
        #: The live view; None while there is nothing to show.
        self._progress: Progress | None = None
        self._rows: dict[Hashable, TaskID] = {}
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    def __enter__(self) -> RunTerminal:
        global _open
        from rich.console import Console

        encoding = sys.stdout.encoding or "utf-8"
        self._screen = os.fdopen(os.dup(STDOUT), "w", encoding=encoding, errors="replace")
        self._console = Console(file=self._screen)
        self.live = self.live and self._console.is_interactive
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
        self.hide_all()
        with self._lock, suppress(OSError):
            self._closed = True
            self._screen.close()
        _undo_redirection(self._kept)
        if error is not None:
            error.add_note(f"The log of the run is {self.log}.")

    def say(self, text: str) -> None:
        """Shows lines. A terminal that has gone ends no run."""
        from rich.text import Text

        with self._lock, suppress(OSError):
            with suppress(OSError):  # The log's disk is full.
                os.write(STDOUT, f"{text}\n".encode())
            if self._closed:  # A line of a worker that comes after the end.
                return
            if self._progress is None:
                print(text, file=self._screen, flush=True)
            else:
                self._console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Shows a warning once; the log has every occurrence."""
        with self._lock:
            is_new = text not in self._warned
            self._warned.add(text)
        if is_new:
            self.say(text)
            return
        with suppress(OSError):
            os.write(STDOUT, f"{text}\n".encode())

    def show(self, key: Hashable, label: str, done: int = 0, total: int | None = None, unit: str = "") -> None:
        """Shows a row in the live view, or changes the one of this key; `total` None: the end is not known."""
        with self._lock, suppress(OSError):
            if not self.live or self._closed:
                return
            if self._progress is None:
                self._progress = self._new_view()
                self._progress.start()
            row = {"completed": done, "total": total, "count": "" if total is None else f"{done}/{total} {unit}"}
            if key in self._rows:
                self._progress.update(self._rows[key], description=label, refresh=True, **row)
            else:
                self._rows[key] = self._progress.add_task(label, **row)

    def hide(self, key: Hashable) -> None:
        """Removes a row, if there is one."""
        with self._lock, suppress(OSError):
            if self._progress is None or key not in self._rows:
                return
            self._progress.remove_task(self._rows.pop(key))
            if not self._rows:
                self._progress.stop()
                self._progress = None

    def hide_all(self) -> None:
        with self._lock:
            for key in list(self._rows):
                self.hide(key)

    def _new_view(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[count]}"))
        return Progress(
            *columns,
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=FRAMES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )


class _WarningsHandler(logging.Handler):
    """Shows what the package logs in this process."""

    def __init__(self, terminal: RunTerminal):
        super().__init__()
        self.setFormatter(logging.Formatter(WARNING_FORMAT))
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        self._terminal.warn(self.format(record))


def _redirect(log: Path) -> tuple[int, int]:
    """Sends standard output and error to the end of a file, also those of native code; returns where they went."""
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
