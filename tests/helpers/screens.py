"""A pseudo-terminal in place of standard output, and what a person then sees."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PART = re.compile(r"\x1b\[\??[\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")
ERASE_LINE = "\x1b[2K"


class Pty:
    """Collects what is written to it."""

    def __init__(self) -> None:
        self._master, self.slave = os.openpty()
        self._chunks: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def close(self) -> None:
        os.close(self.slave)
        self._thread.join()
        os.close(self._master)

    @property
    def text(self) -> str:
        return b"".join(self._chunks).decode()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._master, 1 << 16)
            except OSError:  # Nobody can write any more.
                return
            self._chunks.append(chunk)


@contextmanager
def on_a_terminal() -> Iterator[Pty]:
    """Standard output is a terminal meanwhile; its text is complete afterwards."""
    pty, kept = Pty(), os.dup(1)
    os.dup2(pty.slave, 1)
    try:
        yield pty
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        pty.close()


def screen_of(text: str) -> list[str]:
    """The lines that a terminal shows after this text; knows only the control sequences that rich writes."""
    lines, row, column = [""], 0, 0
    for part in PART.findall(text):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part == ERASE_LINE:
            lines[row] = ""
        elif part.startswith("\x1b["):
            if part[-1] == "A":
                row -= int(part[2:-1] or 1)
            elif part[-1] not in "mhl":
                raise ValueError(f"unknown control sequence {part!r}")
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]
