"""The thread between the training loop and the files of the record."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rllib_arpo.files import replace_file

logger = logging.getLogger("rllib_arpo")

#: Files that may wait for the disk; those that follow are left out, with a warning.
MAX_PENDING = 4
#: Seconds that the end of a run waits for them.
CLOSE_TIMEOUT_S = 60.0


class RecordWriter:
    """Makes tables and writes each into a file of its own; `submit` never waits for them.

    A disk that fails costs its files, but not the run: one warning says so when it begins to fail, and `close` says
    how many questions are missing in all. Any other error in the thread is a bug, which the next `submit` or `close`
    raises.

    Args:
        folder: of the files; made with the first one.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="record")
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._failing = False
        self._num_lost = 0

    def submit(self, name: str, num_questions: int, make_table: Callable[[], pa.Table]) -> None:
        """Writes the table that `make_table` makes in the thread; the file `name` is replaced in one step."""
        while self._pending and self._pending[0][0].done():
            self._pending.popleft()[0].result()
        if len(self._pending) == MAX_PENDING:
            self._num_lost += num_questions
            logger.warning("%s is left out: %d files wait for the disk.", self._folder / name, MAX_PENDING)
            return
        self._pending.append((self._pool.submit(self._write, name, num_questions, make_table), num_questions))

    def close(self) -> None:
        """Waits for the files; can be called twice."""
        pending, self._pending = dict(self._pending), deque()
        done, late = wait(pending, CLOSE_TIMEOUT_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if late:
            logger.warning("%d files of %s were not written in time.", len(late), self._folder)
            self._num_lost += sum(pending[future] for future in late)
        if self._num_lost:
            logger.warning("The record in %s lacks %d questions.", self._folder, self._num_lost)
            self._num_lost = 0
        for future in done:
            future.result()

    def _write(self, name: str, num_questions: int, make_table: Callable[[], pa.Table]) -> None:
        table, path = make_table(), self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_table(table, path)
        except OSError as error:
            self._lose(path, num_questions, error)
        else:
            self._failing = False

    def _lose(self, path: Path, num_questions: int, error: OSError) -> None:
        self._num_lost += num_questions
        if not self._failing:
            logger.warning("%s cannot be written (%s): training goes on without the record.", path, error)
        self._failing = True


def write_table(table: pa.Table, path: Path) -> None:
    """Writes a file of the record, whole or not at all; it is on the disk when this returns."""
    with replace_file(path) as partial:
        pq.write_table(table, partial, compression="zstd")
        with partial.open("rb") as written:
            os.fsync(written.fileno())
