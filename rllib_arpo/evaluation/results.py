"""The folder of an evaluation: settings, and of each arm a record with a file for every finished question.

    DIR/settings.json                          what all arms share
    DIR/01-MODEL-STYLE-TASK/settings.json      the arm and its settings
    DIR/01-MODEL-STYLE-TASK/trees/question-00000012.parquet

A file of a question appears whole and on the disk, so a process that is killed at any moment loses no finished one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from rllib_arpo.core.tree import OUTAGE_STOP_REASONS
from rllib_arpo.evaluation.plan import Arm
from rllib_arpo.files import write_json
from rllib_arpo.record.question import RecordedQuestion
from rllib_arpo.record.read import questions, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER, write_table
from rllib_arpo.record.tables import record_table
from rllib_arpo.redaction import comparable

SETTINGS = "settings.json"
#: The name of an arm's folder begins with its number.
_NUMBERED = re.compile(r"(\d\d+)-")


class ResultsError(ValueError):
    """The folder holds results of other settings, or a file that is damaged or not an evaluation's."""


@dataclass(frozen=True, slots=True)
class StoredArm:
    """A folder's results of a model on a task with a prompting style.

    Attributes:
        settings: on which the results depend, beside those that all arms share (`Arm.settings`).
    """

    folder: Path
    model: str
    style: str
    task: str
    settings: Mapping[str, Any]

    def add(self, question: RecordedQuestion) -> None:
        """Writes a question; it is on the disk when this returns. Replaces one of the same number."""
        trees = self.folder / RECORD_FOLDER
        trees.mkdir(exist_ok=True)
        path = trees / f"question-{question.facts.number:08d}.parquet"
        write_table(record_table([question], question.settings), path)

    def numbers(self) -> set[int]:
        """The questions that need not be asked again: all but those with a sample that an outage ended.

        Raises:
            ResultsError: a file is damaged, or of another version.
        """
        if not self.has_questions():
            return set()
        try:
            files = [file.path for file in record_files(self.folder / RECORD_FOLDER)]
            found = ds.dataset(files).to_table(columns=["number", "stop_reason"]).to_pydict()
        except (ValueError, OSError) as error:
            raise ResultsError(str(error)) from error
        outages = {n for n, reason in zip(*found.values(), strict=True) if reason in OUTAGE_STOP_REASONS}
        return set(found["number"]) - outages

    def questions(self) -> Iterator[RecordedQuestion]:
        """All questions, in the order of their numbers."""
        if self.has_questions():
            for file in record_files(self.folder / RECORD_FOLDER):
                yield from questions(file)

    def has_questions(self) -> bool:
        return any((self.folder / RECORD_FOLDER).glob("*.parquet"))


class ResultFolder:
    """The arms of a folder.

    Raises:
        ValueError: the folder cannot be written, or its path is not UTF-8.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        try:
            str(folder).encode()
            self.folder.mkdir(parents=True, exist_ok=True)
        except UnicodeEncodeError as error:
            raise ValueError(f"--output {self.folder}: the path is not UTF-8.") from error
        except OSError as error:
            raise ValueError(f"--output {self.folder}: not a folder that can be written ({error.strerror}).") from error

    def keep(self, settings: Mapping[str, Any]) -> None:
        """Stores the settings that all arms share; they replace others under which no question was answered.

        Raises:
            ResultsError: there are results with others, and the message names the first key that differs; or a file is
                damaged or not an evaluation's.
        """
        path, has_questions = self.folder / SETTINGS, any(arm.has_questions() for arm in self.arms())
        if has_questions or path.exists():
            known = _read(path)
            if known.keys() != {"settings"}:
                raise ResultsError(f"{path}: not the settings of an evaluation; name another --output.")
            if has_questions:
                self._refuse_others(known["settings"], comparable(settings), "")
        write_json(path, {"settings": comparable(settings)})

    def arm(self, arm: Arm) -> StoredArm:
        """The place of an arm, with its settings.

        Raises:
            ResultsError: as `keep`.
        """
        names = {"model": arm.model.name, "style": arm.style, "task": arm.task}
        # Names of data are paths, and their values no secrets.
        given = arm.settings().items()
        settings = _plain({key: value if key == "data" else comparable(value, key) for key, value in given})
        stored = next((one for one in self.arms() if (one.model, one.style, one.task) == tuple(names.values())), None)
        if stored is None:
            taken = [int(found[1]) for path in self.folder.iterdir() if (found := _NUMBERED.match(path.name))]
            slug = re.sub(r"[^\w.]+", "-", f"{arm.label} {arm.task}")
            folder = self.folder / f"{max(taken, default=0) + 1:02d}-{slug[-80:].lstrip('-')}"
        else:
            folder = stored.folder
            if stored.has_questions():
                self._refuse_others(stored.settings, settings, f" of {arm.name}")
        folder.mkdir(exist_ok=True)
        write_json(folder / SETTINGS, names | {"settings": settings})
        return StoredArm(folder, **names, settings=settings)

    def arms(self) -> list[StoredArm]:
        """The arms that the folder has, the oldest first; other folders are left alone.

        Raises:
            ResultsError: a file is damaged.
        """
        paths = [path for path in sorted(self.folder.glob(f"*/{SETTINGS}")) if _NUMBERED.match(path.parent.name)]
        found = [(path.parent, _read(path)) for path in paths]
        keys = {"model", "style", "task", "settings"}
        return [StoredArm(folder, **content) for folder, content in found if content.keys() == keys]

    def _refuse_others(self, known: Mapping[str, Any], given: Mapping[str, Any], of_arm: str) -> None:
        if difference := first_difference(known, _plain(given)):
            key, old, new = difference
            raise ResultsError(
                f"{self.folder} has results{of_arm} with {key}={old}, not {new}: keep the setting, or name another "
                "--output."
            )


def first_difference(old: Any, new: Any, path: str = "") -> tuple[str, str, str] | None:
    """(key, old value, new value) of the first difference between two settings; keys below a dict as "a/b"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            below = f"{path}/{key}" if path else key
            if found := first_difference(old.get(key), new.get(key), below):
                return found
        return None
    return None if old == new else (path, json.dumps(old), json.dumps(new))


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: a tuple is a list."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _read(path: Path) -> dict[str, Any]:
    """An object in a file; another value counts as {}."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ResultsError(f"{path}: missing or damaged ({error}); name another --output.") from error
    return content if isinstance(content, dict) else {}
