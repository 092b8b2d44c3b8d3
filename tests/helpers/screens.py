"""A pseudo-terminal in place of standard output, and what a person then sees."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
    """The lines that a terminal shows after this text, as tqdm and print write it."""
    lines, column = [""], 0
    for part in re.findall(r"\r|\n|[^\r\n]+", text):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]
