"""The results of an evaluation in one sqlite file: every question is durable as soon as it has ended.

A question is one transaction: a process that is killed at any moment leaves all of it or nothing of it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.core.tree import OUTAGE_STOP_REASONS
from rllib_arpo.evaluation.records import QuestionRecord, SampleRecord, TurnRecord

DATABASE = "results.sqlite"
#: The version of the tables and of the records in them.
VERSION = 2
LOCK = "lock"
#: The arm name that stores the settings shared by all arms.
SHARED = ""
_TABLES = """
CREATE TABLE IF NOT EXISTS settings (arm TEXT PRIMARY KEY, settings TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS questions (
    arm TEXT NOT NULL, number INTEGER NOT NULL, record TEXT NOT NULL, commit_hash TEXT,
    PRIMARY KEY (arm, number)
);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
#: SQL condition on a question: an outage ended one of its samples.
_HAS_OUTAGE = f"""EXISTS (
    SELECT 1 FROM json_each(record, '$.samples')
    WHERE json_extract(value, '$.stop_reason') IN ({", ".join(f"'{reason}'" for reason in OUTAGE_STOP_REASONS)})
)"""


class SettingsError(ValueError):
    """The folder holds results of other settings."""


class ResultStore:
    """What has been evaluated: per arm (a model with a prompting style and a task) its settings and its questions.

    Only one process at a time may use a folder. Use as a context manager.

    Raises:
        ValueError: the folder cannot be written, another process evaluates into it, or its database is not one of this
            layout.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / LOCK).open("w")
        except OSError as error:
            raise ValueError(f"--output {self.folder}: not a folder that can be written ({error.strerror}).") from error
        try:
            # The kernel releases the lock when the process dies, however it dies.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ValueError(f"{self.folder}: another evaluation is writing here.") from None
        try:
            self._connection = sqlite3.connect(self.folder / DATABASE)
            self._connection.execute("PRAGMA journal_mode=WAL")
            # Every commit goes to the disk, so that it also survives a loss of power.
            self._connection.execute("PRAGMA synchronous=FULL")
            self._check_version()
            self._connection.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            self._lock.close()
            raise ValueError(f"{self.folder / DATABASE}: not a database of results ({error}).") from error

    def _check_version(self) -> None:
        """Writes the version into a new database.

        Raises:
            sqlite3.DatabaseError: the database has another version.
        """
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (num_tables,) = self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if num_tables and version != VERSION:
            raise sqlite3.DatabaseError(f"it has version {version}, not {VERSION}")
        self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def claim(self, settings: Mapping[str, Any], arm: str = SHARED) -> None:
        """Stores the settings of an arm (default: those that all arms share), or compares them with the stored ones.

        Replaces settings under which no question was answered.

        Raises:
            SettingsError: they differ; the message names the first key.
        """
        known = self.settings(arm)
        given = json.loads(json.dumps(settings))
        has_results = self._value("SELECT arm FROM questions WHERE arm = :name OR :name = '' LIMIT 1", arm) is not None
        if known is None or not has_results:
            with self._connection:
                self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (arm, json.dumps(given)))
        elif difference := first_difference(known, given):
            key, old, new = difference
            of_arm = f" of {arm}" if arm else ""
            raise SettingsError(
                f"{self.folder} has results{of_arm} with {key}={old}, not {new}: keep the setting, or name another "
                "--output."
            )

    def add(self, arm: str, record: QuestionRecord, commit: str | None) -> None:
        """Stores a question; it is on the disk when this returns. Replaces a question that an outage ended.

        Raises:
            sqlite3.IntegrityError: the arm has this question already.
        """
        text = json.dumps(dataclasses.asdict(record), ensure_ascii=False)
        with self._connection:
            replaced = f"DELETE FROM questions WHERE arm = ? AND number = ? AND {_HAS_OUTAGE}"
            self._connection.execute(replaced, (arm, record.number))
            self._connection.execute("INSERT INTO questions VALUES (?, ?, ?, ?)", (arm, record.number, text, commit))

    def numbers(self, arm: str) -> set[int]:
        """The questions of an arm that need not be asked again: all but those with a sample that an outage ended."""
        query = f"SELECT number FROM questions WHERE arm = ? AND NOT {_HAS_OUTAGE}"
        return {number for (number,) in self._connection.execute(query, (arm,))}

    def records(self, arm: str) -> Iterator[tuple[QuestionRecord, str | None]]:
        """The questions of an arm in the order of their numbers, each with the commit that evaluated it."""
        query = "SELECT record, commit_hash FROM questions WHERE arm = ? ORDER BY number"
        for text, commit in self._connection.execute(query, (arm,)):
            yield _record(json.loads(text)), commit

    def arms(self) -> list[str]:
        """The names of the arms that have answers."""
        query = "SELECT arm FROM settings WHERE arm IN (SELECT arm FROM questions) ORDER BY rowid"
        return [name for (name,) in self._connection.execute(query)]

    def settings(self, arm: str = SHARED) -> dict[str, Any] | None:
        """The stored settings of an arm (default: those that all arms share); None if there are none."""
        text = self._value("SELECT settings FROM settings WHERE arm = :name", arm)
        return None if text is None else json.loads(text)

    def note(self, name: str) -> Any:
        """The value that `set_note` stored under this name, or None."""
        text = self._value("SELECT value FROM notes WHERE name = :name", name)
        return None if text is None else json.loads(text)

    def set_note(self, name: str, value: Any) -> None:
        with self._connection:
            self._connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, json.dumps(value)))

    def close(self) -> None:
        """Can be called twice."""
        self._connection.close()
        self._lock.close()

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_exc_info) -> None:
        self.close()

    def _value(self, query: str, name: str) -> str | None:
        found = self._connection.execute(query, {"name": name}).fetchone()
        return None if found is None else found[0]


def first_difference(old: Any, new: Any, path: str = "") -> tuple[str, str, str] | None:
    """(key, old value, new value) of the first difference between two settings; keys below a dict as "a/b"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            below = f"{path}/{key}" if path else key
            if found := first_difference(old.get(key), new.get(key), below):
                return found
        return None
    return None if old == new else (path, json.dumps(old), json.dumps(new))


def _record(fields: dict[str, Any]) -> QuestionRecord:
    samples = (SampleRecord(**(sample | {"turns": tuple(map(_turn, sample["turns"]))})) for sample in fields["samples"])
    return QuestionRecord(**(fields | {"answers": tuple(fields["answers"]), "samples": tuple(samples)}))


def _turn(turn: Mapping[str, Any]) -> TurnRecord:
    entropies = turn.get("entropies")
    return TurnRecord(**{**turn, "entropies": None if entropies is None else tuple(entropies)})
