"""Keeps the results of an evaluation in a folder: each arm's settings, and a file for every finished question.

    DIR/MODEL-TASK-0a1b2c3d/settings.json
    DIR/MODEL-TASK-0a1b2c3d/trees/question-00000012.parquet

A question's file is written in one step, so a process may be killed at any time without losing a finished question.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from rllib_arpo.core.tree import OUTAGE_STOP_REASONS
from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.evaluation.plan import Arm, EvaluationSettings
from rllib_arpo.files import write_json
from rllib_arpo.record.question import RecordedQuestion
from rllib_arpo.record.read import questions, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER, write_table
from rllib_arpo.record.tables import record_table
from rllib_arpo.redaction import comparable

SETTINGS = "settings.json"


@dataclass(frozen=True, slots=True)
class StoredArm:
    """The folder with an arm's results."""

    folder: Path

    def add(self, question: RecordedQuestion) -> None:
        """Writes a question to the disk, in place of one with the same number."""
        trees = self.folder / RECORD_FOLDER
        trees.mkdir(exist_ok=True)
        path = trees / f"question-{question.facts.number:08d}.parquet"
        write_table(record_table([question], question.settings), path)

    def numbers(self) -> set[int]:
        """The questions that need not be asked again, because no outage ended one of their samples.

        Raises:
            CommandError: a file is damaged, or has another version.
        """
        if not self.has_questions():
            return set()
        with command_errors((ValueError, OSError)):
            files = [file.path for file in record_files(self.folder / RECORD_FOLDER)]
            found = ds.dataset(files).to_table(columns=["number", "stop_reason"]).to_pydict()
        outages = {n for n, reason in zip(*found.values(), strict=True) if reason in OUTAGE_STOP_REASONS}
        return set(found["number"]) - outages

    def questions(self) -> Iterator[RecordedQuestion]:
        """All questions, in the order of their numbers."""
        if self.has_questions():
            for file in record_files(self.folder / RECORD_FOLDER):
                yield from questions(file)

    def has_questions(self) -> bool:
        return any((self.folder / RECORD_FOLDER).glob("*.parquet"))


def stored_arm(folder: Path, arm: Arm, settings: EvaluationSettings) -> StoredArm:
    """Finds or makes an arm's folder below `folder`. Settings without any answered question are replaced.

    Raises:
        CommandError: there are results with other settings (the message names the first difference), or the file of
            the settings is damaged.
    """
    slug = re.sub(r"[^\w.]+", "-", f"{Path(arm.model.name).name} {arm.task}")
    mark = hashlib.sha256(f"{arm.model.name}\n{arm.task}".encode()).hexdigest()[:8]
    stored = StoredArm(folder / f"{slug[-80:].lstrip('-')}-{mark}")
    # "data" has paths and no secrets.
    own = {key: value if key == "data" else comparable(value, key) for key, value in arm.settings().items()}
    # Through JSON, which turns tuples into lists.
    given = json.loads(json.dumps(comparable(dataclasses.asdict(settings)) | own))
    path = stored.folder / SETTINGS
    if stored.has_questions():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise CommandError(f"{path}: is missing or damaged ({error}); name another --output.") from error
        if difference := first_difference(known, given):
            key, old, new = difference
            raise CommandError(
                f"{folder} has results of {arm.name} with {key}={old}, not {new}: use the old setting, or name another "
                "--output."
            )
    stored.folder.mkdir(exist_ok=True)
    write_json(path, given)
    return stored


def first_difference(old: Any, new: Any, path: str = "") -> tuple[str, str, str] | None:
    """(key, old value, new value) of the first difference between two settings; a key within a dict is "a/b"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            below = f"{path}/{key}" if path else key
            if found := first_difference(old.get(key), new.get(key), below):
                return found
        return None
    return None if old == new else (path, json.dumps(old), json.dumps(new))
