"""A cache of texts in one sqlite file, safe for many processes and threads that write at once.

`rllib-arpo import-cache CACHE.sqlite FILE.json` adds the entries of a JSON file {key: text}.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import check_unicode, read_json
from rllib_arpo.envs.support.texts import search_key

#: Seconds for which a process waits while another one writes.
BUSY_TIMEOUT_S = 60.0
#: A sqlite connection must not survive a fork, not even to be closed there; so none is open during a fork.
_LOCK = threading.Lock()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class ResultCache:
    """key -> text, kept in the sqlite file `path`. The last value of a key counts.

    Once `put` has returned, its entries are visible to every process and survive the death of any of them. All
    processes must be on one machine: sqlite's locks do not work over NFS. If this process may not write the file, it
    only reads it, and `put` raises.

    Attributes:
        read_only: whether the file exists and may not be written.

    Raises:
        DataError: `path` is not a sqlite file of this layout, or cannot be made; later: it cannot be read or written.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        self.read_only = os.path.exists(self.path) and not os.access(self.path, os.W_OK)
        with self._transaction() as connection:
            if not self.read_only:
                connection.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute("SELECT key, value FROM results LIMIT 1").fetchone()

    def get(self, key: str) -> str | None:
        """The text of `key`, or None."""
        with self._transaction() as connection:
            row = connection.execute("SELECT value FROM results WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: str, value: str) -> None:
        """Keeps `value`."""
        self.put_all([(key, value)])

    def put_all(self, entries: Iterable[tuple[str, str]]) -> None:
        """Keeps all `entries`, or none if one of them is wrong.

        Raises:
            DataError: the file is read-only.
        """
        self._check_writable()
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", entries)

    async def get_or_make(self, key: str, make: Callable[[], Awaitable[str]]) -> str:
        """The text of `key`; if there is none yet, `make()` makes it and it is kept. Does not block the event loop.

        Callers that ask at once all get the text that was kept first.

        Raises:
            DataError: there is none, and the file is read-only.
        """
        text = await asyncio.to_thread(self.get, key)
        if text is not None:
            return text
        self._check_writable()
        return await asyncio.to_thread(self._keep_first, key, await make())

    def _keep_first(self, key: str, value: str) -> str:
        """Keeps `value` unless there is a text by now, and returns what is kept."""
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO results VALUES (?, ?)", (key, value))
            return connection.execute("SELECT value FROM results WHERE key = ?", (key,)).fetchone()[0]

    def _check_writable(self) -> None:
        if self.read_only:
            raise DataError(f"{self.path}: this cache may not be written.")

    def __len__(self) -> int:
        with self._transaction() as connection:
            return connection.execute("SELECT COUNT(*) FROM results").fetchone()[0]

    def has_mark(self, mark: int, keep: bool) -> bool:
        """Whether the file has this mark (1 to 2**31 - 1) or none; `keep`: a file without a mark gets this one."""
        with self._transaction() as connection:
            connection.execute("BEGIN IMMEDIATE" if keep else "BEGIN")
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if keep and not found:
                connection.execute(f"PRAGMA user_version = {mark}")
        return found in (0, mark)

    def import_json(self, path: str | Path) -> int:
        """Adds the entries of a JSON file {key: text} under their `search_key`s, and returns their number.

        ARPO's `search_cache.json` has this layout.

        Raises:
            DataError: the file is missing or is not of this layout; nothing is added then.
        """
        entries = read_json(path)
        if not isinstance(entries, dict):
            raise DataError(f"{path}: the file must hold one JSON object of texts.")
        for key, value in entries.items():
            if not isinstance(value, str):
                raise DataError(f"{path}: the value of {key!r} is not a text.")
            try:
                check_unicode(key, value)
            except ValueError as error:
                raise DataError(f"{path}: the entry {key!r} is {error}.") from error
        self.put_all((search_key(key), text) for key, text in entries.items())
        return len(entries)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction; one at a time in this process."""
        uri = f"{Path(self.path).absolute().as_uri()}?mode={'ro' if self.read_only else 'rwc'}"
        try:
            with (
                _LOCK,
                contextlib.closing(sqlite3.connect(uri, timeout=BUSY_TIMEOUT_S, uri=True)) as connection,
                connection,
            ):
                yield connection
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path}: cannot be used as a cache ({error}).") from error
