"""Rows of the methods' table that need no engine: results that earlier commands stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_arpo.evaluation.errors import CommandError, command_errors
from rllib_arpo.evaluation.method_table import Scores
from rllib_arpo.evaluation.metrics import arm_metrics
from rllib_arpo.evaluation.plan import Arm
from rllib_arpo.evaluation.records import QuestionRecord
from rllib_arpo.evaluation.store import DATABASE, ResultStore, first_difference
from rllib_arpo.evaluation.suites import score_of

#: The note in a store: model name -> method.
METHODS = "methods"
#: Settings in which the rows of a table may differ. (The questions themselves are compared.)
_FREE = (
    "seed", "samples", "limit", "path", "entropies", "engine_kwargs", "question_deadline_s", "model_name_or_path"
)  # fmt: skip


@dataclass
class EarlierResults:
    """What was found, and what the reader of the table should know about it.

    Attributes:
        scores: of complete arms that the command does not evaluate itself.
        notes: sentences.
    """

    scores: list[Scores] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def earlier_results(store: ResultStore, folders: Sequence[str], arms: Sequence[Arm]) -> EarlierResults:
    """The results of the tasks of `arms` in `store`, beside those of `arms` themselves, and in other folders.

    An arm of `store` that does not fit is left out, with a note.

    Raises:
        CommandError: a folder has no results of these tasks, or some of other questions or that would count twice.
    """
    reader = _Reader(store, arms)
    found = EarlierResults()
    own = {arm.name for arm in arms}
    for arm in (name for name in store.arms() if name not in own):
        if complaint := reader.take(store, arm, found):
            found.notes.append(f"Left out: {complaint}")
    for folder in dict.fromkeys(str(Path(folder).resolve()) for folder in folders):
        if folder == str(store.folder.resolve()):
            raise CommandError(f"--rows-of {folder}: this is the folder of --output, whose rows are shown anyway.")
        if not (Path(folder) / DATABASE).is_file():
            raise CommandError(f"--rows-of {folder}: no results of an evaluation.")
        before = len(found.scores)
        with command_errors():
            other = ResultStore(folder)
        with other:
            for arm in other.arms():
                if complaint := reader.take(other, arm, found):
                    raise CommandError(f"--rows-of {complaint}")
        if len(found.scores) == before:
            raise CommandError(f"--rows-of {folder}: no results of the tasks {', '.join(reader.tasks)}.")
    return found


@dataclass(frozen=True, slots=True)
class _Entry:
    """What tells the scores of a row apart.

    Attributes:
        row: its method (None: the model's own row), style and task.
        fingerprint: of the model.
        seed: of the samples; None for greedy decoding, which is the same with every seed.
        difference: (key, its value, the command's value) of the first setting that differs from the command's.
        folder: of the results.
    """

    model: str
    row: tuple[str | None, str, str]
    fingerprint: str | None
    seed: int | None
    difference: tuple[str, str, str] | None
    folder: str


class _Reader:
    """Compares stored arms with those of the command.

    Attributes:
        tasks: task -> an arm of the command.
    """

    def __init__(self, store: ResultStore, arms: Sequence[Arm]):
        self.tasks = {arm.task: arm for arm in reversed(arms)}
        self._arms = {(arm.style, arm.task): arm for arm in reversed(arms)}
        self._settings: Mapping[str, Any] = store.settings() or {}
        self._entries = [_entry(store, a.model.name, a.style, a.task, a.model.fingerprint, None) for a in arms]

    def take(self, store: ResultStore, name: str, found: EarlierResults) -> str | None:
        """Adds the scores of a stored arm to `found`; returns a sentence about it if they do not fit."""
        model, style, task = name.rsplit(" ", 2)
        if task not in self.tasks:
            return None
        settings, where = store.settings(name) or {}, f"{store.folder}: {model} {style}"
        numbers, wanted = store.numbers(name), self.tasks[task].numbers
        if numbers != set(wanted):
            return f"{where} has answered {len(numbers)} questions of {task}, not the {len(wanted)} of this command."
        texts: list[str] = []
        metrics = arm_metrics(_noting(store.records(name), texts))
        if texts != self.tasks[task].question_texts():
            return f"{where} was asked other questions of {task}."
        difference = self._difference(store, settings, style, task)
        entry = _entry(store, model, style, task, settings.get("model_fingerprint"), difference)
        if complaint := self._clash(entry):
            return f"{where} {complaint}"
        self._entries.append(entry)
        found.scores.append(Scores(model, entry.row[0], style, task, entry.folder, metrics.values[score_of(task)]))
        if difference is not None:
            note = "The rows of {} have {}={}, not {}.".format(store.folder, *difference)
            found.notes += [note] * (note not in found.notes)
        return None

    def _clash(self, entry: _Entry) -> str | None:
        """What is wrong with an entry beside the earlier ones of its row that are of the same model."""
        for other in self._entries:
            if (other.model, other.row) != (entry.model, entry.row):
                continue
            same_model, same_settings = other.fingerprint == entry.fingerprint, other.difference == entry.difference
            if same_model and same_settings and other.seed == entry.seed:
                return f"has the same samples of {entry.row[2]} in {other.folder}, and they would count twice."
            if entry.row[0] is None and not (same_model and same_settings):
                what = "other weights" if same_settings else "other settings"
                return f"has {what} in {other.folder}: give both a method, --model METHOD=MODEL."
        return None

    def _difference(
        self, store: ResultStore, settings: Mapping[str, Any], style: str, task: str
    ) -> tuple[str, str, str] | None:
        """The first setting in which an arm differs from the command's arm of the same style and task."""
        theirs, ours = _compared(store.settings() or {}), _compared(self._settings)
        if (arm := self._arms.get((style, task))) is not None:
            theirs["env_config"] = _compared(settings.get("env_config", {}))
            ours["env_config"] = _compared(arm.env_config)
        return first_difference(theirs, json.loads(json.dumps(ours)))


def _entry(
    store: ResultStore,
    model: str,
    style: str,
    task: str,
    fingerprint: str | None,
    difference: tuple[str, str, str] | None,
) -> _Entry:
    settings, method = store.settings() or {}, (store.note(METHODS) or {}).get(model)
    seed = settings.get("seed") if settings.get("temperature") else None
    return _Entry(model, (method, style, task), fingerprint, seed, difference, str(store.folder))


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in _FREE}


def _noting(
    records: Iterator[tuple[QuestionRecord, str | None]], texts: list[str]
) -> Iterator[tuple[QuestionRecord, str | None]]:
    """The records; appends the text of each question to `texts`."""
    for record, commit in records:
        texts.append(record.question)
        yield record, commit
