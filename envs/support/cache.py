"""A cache of texts in one sqlite file, safe for many processes and threads that write at once.

`rllib-arpo import-cache CACHE.sqlite FILE.json` adds the entries of a JSON file {key: text}.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from rllib_arpo.envs.errors import DataError

#: Seconds for which a process waits while another one writes.
BUSY_TIMEOUT_S = 60.0
_RETRY_S = 0.01


class ResultCache:
    """key -> text, kept in the sqlite file `path` (write-ahead log). The last value of a key counts.

    Once `put` has returned, its entries are visible to every process and survive the death of any of them; a crash of
    the whole machine may lose the last moments. All processes must be on one machine: sqlite's write-ahead log does not
    work over NFS. If this process may not write the file, it only reads it, and `put` raises.

    Attributes:
        read_only: whether the file exists and may not be written.

    Raises:
        DataError: `path` is not a sqlite file of this layout, or cannot be made.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        self.read_only = os.path.exists(self.path) and not os.access(self.path, os.W_OK)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        with _FORK_LOCK:
            _CACHES.add(self)
        with self._transaction():
            pass

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
        if self.read_only:
            raise DataError(f"{self.path}: this cache may not be written.")
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", entries)

    def items(self) -> Iterator[tuple[str, str]]:
        """All entries as they are now, in no particular order."""
        with self._transaction() as connection:
            return iter(connection.execute("SELECT key, value FROM results").fetchall())

    def __len__(self) -> int:
        with self._transaction() as connection:
            return connection.execute("SELECT COUNT(*) FROM results").fetchone()[0]

    def settings(self) -> str | None:
        """The settings that `keep_settings` has stored, or None."""
        with self._transaction() as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'settings'").fetchone() is None:
                return None
            row = connection.execute("SELECT value FROM settings").fetchone()
        return None if row is None else row[0]

    def keep_settings(self, settings: str) -> None:
        """Stores the settings on which the texts depend beside their keys, unless the file has settings already."""
        with self._transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS settings (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute("INSERT OR IGNORE INTO settings VALUES (1, ?)", (settings,))

    def import_json(self, path: str | Path) -> int:
        """Adds the entries of a JSON file {key: text} and returns their number.

        Raises:
            DataError: the file is missing or is not of this layout; nothing is added then.
        """
        entries = read_texts(path)
        self.put_all(entries.items())
        return len(entries)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, in one transaction; one thread at a time."""
        with self._lock:
            if self._connection is None:
                self._connection = _connect(self.path, self.read_only)
            with self._connection:
                yield self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.__init__(**state)


def read_texts(path: str | Path) -> dict[str, str]:
    """The entries of a JSON file {key: text}, which is the layout of ARPO's `search_cache.json`.

    Raises:
        DataError: the file is missing or is not of this layout.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}).") from error
    if not isinstance(entries, dict):
        raise DataError(f"{path}: the file must hold one JSON object of texts.")
    for key, value in entries.items():
        if not isinstance(value, str):
            raise DataError(f"{path}: the value of {key!r} is not a text.")
        try:
            (key + value).encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{path}: the entry {key!r} is not valid Unicode ({error}).") from error
    return entries


def _connect(path: str, read_only: bool) -> sqlite3.Connection:
    try:
        connection = _connect_read_only(path) if read_only else _connect_for_writing(path)
        connection.execute("SELECT key, value FROM results LIMIT 1").fetchone()
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path}: cannot be used as a cache ({error}).") from error
    return connection


def _connect_for_writing(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switches a new file to write-ahead logging. Sqlite itself does not wait if another process does the same."""
    end = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(_RETRY_S)


def _connect_read_only(path: str) -> sqlite3.Connection:
    """Opens the file as immutable if sqlite cannot even make the files beside the log, since then nobody writes it."""
    uri = Path(path).absolute().as_uri()
    try:
        connection = sqlite3.connect(f"{uri}?mode=ro", timeout=BUSY_TIMEOUT_S, uri=True, check_same_thread=False)
        connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    return connection


#: A sqlite connection must not survive a fork, not even to be closed there; so none is open during a fork.
_CACHES: weakref.WeakSet[ResultCache] = weakref.WeakSet()
_FORK_LOCK = threading.Lock()
_HELD: list[ResultCache] = []


def _before_fork() -> None:
    _FORK_LOCK.acquire()
    _HELD.extend(sorted(_CACHES, key=id))
    for cache in _HELD:
        cache._lock.acquire()
        cache._close()


def _after_fork() -> None:
    for cache in _HELD:
        cache._lock.release()
    _HELD.clear()
    _FORK_LOCK.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
