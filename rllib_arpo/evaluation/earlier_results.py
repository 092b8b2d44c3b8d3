"""Rows of the methods' table that need no engine: results that earlier commands stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_arpo.evaluation.errors import CommandError, command_errors
from rllib_arpo.evaluation.method_table import Scores
from rllib_arpo.evaluation.metrics import arm_metrics
from rllib_arpo.evaluation.plan import Arm
from rllib_arpo.evaluation.results import OLD_RESULTS, SETTINGS, ResultFolder, StoredArm, first_difference
from rllib_arpo.evaluation.suites import score_of

#: Settings in which the rows of a table may differ. (The questions themselves are compared.)
_FREE = (
    "seed", "samples", "limit", "path", "entropies", "engine_kwargs", "question_deadline_s", "model_name_or_path"
)  # fmt: skip


def earlier_results(
    results: ResultFolder, folders: Sequence[str], arms: Sequence[Arm]
) -> tuple[list[Scores], list[str]]:
    """(scores, notes) of the tasks of `arms`: of other arms in `results`, and of those in other folders.

    An arm of `results` that does not fit is left out, with a note.

    Raises:
        CommandError: a folder has no results of these tasks, or some of other questions or that would count twice.
    """
    reader = _Reader(results, arms)
    for complaint in reader.complaints(results):
        reader.notes.append(f"Left out: {complaint}")
    for folder in dict.fromkeys(str(Path(folder).resolve()) for folder in folders):
        if folder == str(results.folder.resolve()):
            raise CommandError(f"--rows-of {folder}: this is the folder of --output, whose rows are shown anyway.")
        if not any((Path(folder) / name).is_file() for name in (SETTINGS, OLD_RESULTS)):
            raise CommandError(f"--rows-of {folder}: no results of an evaluation.")
        with command_errors():
            other = ResultFolder(folder)
        before = len(reader.scores)
        with other:
            for complaint in reader.complaints(other):
                raise CommandError(f"--rows-of {complaint}")
        if len(reader.scores) == before:
            raise CommandError(f"--rows-of {folder}: no results of the tasks {', '.join(reader.tasks)}.")
    return reader.scores, reader.notes


class _Reader:
    """Compares stored arms with those of the command.

    Attributes:
        tasks: task -> an arm of the command.
        scores, notes: of the arms that fit.
    """

    def __init__(self, results: ResultFolder, arms: Sequence[Arm]):
        self.tasks = {arm.task: arm for arm in reversed(arms)}
        self.scores: list[Scores] = []
        self.notes: list[str] = []
        self._results = results
        self._own = {(arm.model.name, arm.style, arm.task): arm for arm in arms}
        # Row, style and task -> the (fingerprint, seed, settings that differ, folder) of its models.
        self._known: dict[tuple[str, str, str], list[tuple[Any, ...]]] = {}
        for arm in arms:
            self._clash(results, arm.model.name, arm.style, arm.task, arm.model.fingerprint, None)

    def complaints(self, folder: ResultFolder) -> list[str]:
        """Reads a folder; returns a sentence about each arm that does not fit."""
        stored = [arm for arm in folder.arms() if arm.task in self.tasks and arm.has_questions()]
        if folder is self._results:
            stored = [arm for arm in stored if (arm.model, arm.style, arm.task) not in self._own]
        return [complaint for arm in stored if (complaint := self._take(folder, arm))]

    def _take(self, folder: ResultFolder, stored: StoredArm) -> str | None:
        where, task = f"{folder.folder}: {stored.model} {stored.style}", stored.task
        numbers, wanted = stored.numbers(), self.tasks[task].numbers
        if numbers != set(wanted):
            return f"{where} has answered {len(numbers)} questions of {task}, not the {len(wanted)} of this command."
        metrics = arm_metrics(stored.questions())
        if list(metrics.texts) != self.tasks[task].question_texts():
            return f"{where} was asked other questions of {task}."
        fingerprint, difference = stored.settings["model_fingerprint"], self._difference(folder, stored)
        if clash := self._clash(folder, stored.model, stored.style, task, fingerprint, difference):
            return f"{where} {clash}"
        method = folder.methods().get(stored.model)
        values = metrics.values[score_of(task)]
        self.scores.append(Scores(stored.model, method, stored.style, task, str(folder.folder), values))
        if difference is not None:
            note = "The rows of {} have {}={}, not {}.".format(folder.folder, *difference)
            self.notes += [note] * (note not in self.notes)
        return None

    def _clash(
        self, folder: ResultFolder, model: str, style: str, task: str, fingerprint: str | None, difference: Any
    ) -> str | None:
        """The fault of an arm beside the earlier ones of the same model and row."""
        shared, method = folder.shared(), folder.methods().get(model)
        # Greedy decoding is the same with every seed.
        own = (fingerprint, shared["seed"] if shared["temperature"] else None, difference)
        earlier = self._known.setdefault((model, method or "", f"{style} {task}"), [])
        for *same, place in earlier:
            if tuple(same) == own:
                return f"has the same samples of {task} in {place}, and they would count twice."
            if method is None and (same[0], same[2]) != (fingerprint, difference):
                what = "other weights" if same[2] == difference else "other settings"
                return f"has {what} in {place}: give both a method, --model METHOD=MODEL."
        earlier.append((*own, folder.folder))
        return None

    def _difference(self, folder: ResultFolder, stored: StoredArm) -> tuple[str, str, str] | None:
        """The first setting in which an arm differs from the command's arm of the same style and task."""
        theirs, ours = _compared(folder.shared()), _compared(self._results.shared())
        same = (arm for key, arm in self._own.items() if key[1:] == (stored.style, stored.task))
        if (arm := next(same, None)) is not None:
            theirs["env_config"] = _compared(stored.settings["env_config"])
            ours["env_config"] = _compared(arm.settings()["env_config"])
        return first_difference(theirs, ours)


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain = json.loads(json.dumps(settings))
    return {key: value for key, value in plain.items() if key not in _FREE}
