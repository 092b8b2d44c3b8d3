"""Reads the record of a run: which questions it has, and a question with its trajectories and turns."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rllib_arpo.core.tree import fork_path
from rllib_arpo.record.schema import (
    ANSWER,
    EVALUATION,
    QUESTION,
    SCHEMA,
    SETTINGS_KEY,
    TRAJECTORY,
    TURN,
    VERSION,
    VERSION_KEY,
)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """One file of a record with its settings."""

    path: Path
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A trajectory: the columns `schema.TRAJECTORY` and `schema.ANSWER` of its rows, and its own turns as rows."""

    row: Row
    turns: tuple[Row, ...]

    @property
    def agent_id(self) -> str:
        return self.row["agent_id"]

    def depth_at_end(self) -> int:
        """Turns on its whole path."""
        return self.row["inherited_turns"] + len(self.turns)


@dataclass(frozen=True, slots=True)
class Question:
    """A recorded question.

    Attributes:
        row: the columns `schema.QUESTION`.
        trajectories: in the order of the record: parents precede their forks.
        settings: of the run (docs/watch.md).
    """

    row: Row
    trajectories: tuple[Trajectory, ...]
    settings: Mapping[str, Any]

    def turns(self) -> Iterator[Row]:
        for trajectory in self.trajectories:
            yield from trajectory.turns

    def stop_reasons(self) -> list[str]:
        return sorted({trajectory.row["stop_reason"] for trajectory in self.trajectories})

    def tools(self) -> list[str]:
        """The tools that were called and named."""
        return sorted({turn["tool"] for turn in self.turns() if turn["tool"]})

    def path(self, trajectory: Trajectory) -> tuple[Row, ...]:
        """All turns from the prompt to the trajectory's end."""
        parent = trajectory.row["parent"]
        above = () if parent is None else self.path(self.trajectory(parent))[: trajectory.row["inherited_turns"]]
        return above + trajectory.turns

    def trajectory(self, agent_id: str) -> Trajectory:
        return next(trajectory for trajectory in self.trajectories if trajectory.agent_id == agent_id)

    def num_forks(self) -> int:
        return sum(trajectory.row["parent"] is not None for trajectory in self.trajectories)

    def fork_budget(self) -> int:
        """Forks that the question may have: M - N."""
        roots = sum(t.row["parent"] is None and not t.row["topped_up"] for t in self.trajectories)
        return self.settings["num_rollouts"] - roots


def record_files(place: str | Path) -> list[RecordFile]:
    """The files of a record: a parquet file itself, or all below the folder of a run, a trial or an experiment.

    They come in the order of their iterations, an evaluation after the training before it.

    Raises:
        ValueError: there is no record, or a file is not one of this version.
    """
    place = Path(place)
    paths = [place] if place.is_file() else sorted((*place.glob("*.parquet"), *place.glob("**/trees/*.parquet")))
    if not paths:
        raise ValueError(f"{place}: neither a parquet file of a record nor a folder with trees/*.parquet below it.")
    return [RecordFile(path, _settings(path)) for path in sorted(set(paths), key=_place)]


def _place(path: Path) -> tuple[Path, str, bool]:
    """The folder, the iteration as its file's name ends with it, and whether it is an evaluation."""
    name, _, iteration = path.stem.rpartition("-")
    return path.parent, iteration, name == EVALUATION


def _settings(path: Path) -> dict[str, Any]:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a parquet file ({error}).") from error
    metadata = schema.metadata or {}
    version = metadata.get(VERSION_KEY)
    if version is None:
        raise ValueError(f"{path}: not a record of trees: its metadata lacks {VERSION_KEY.decode()}.")
    if version != str(VERSION).encode():
        raise ValueError(f"{path}: a record of version {version.decode()}; this command reads version {VERSION}.")
    if missing := set(SCHEMA.names) - set(schema.names):
        raise ValueError(f"{path}: lacks the column {min(missing)!r}.")
    for name in SCHEMA.names:
        if schema.field(name) != SCHEMA.field(name):
            raise ValueError(f"{path}: the column {name!r} must be {SCHEMA.field(name).type} and is not.")
    try:
        return json.loads(metadata[SETTINGS_KEY])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: its metadata has no settings that can be read.") from error


def questions(file: RecordFile, question_id: str | None = None) -> Iterator[Question]:
    """The questions of a file in their order; with `question_id` only those of this name."""
    filters = None if question_id is None else [("question_id", "=", question_id)]
    yield from questions_of(pq.read_table(file.path, filters=filters).to_pylist(), file.settings)


def numbered_questions(file: RecordFile, numbers: Collection[int]) -> Iterator[Question]:
    """The questions of a file with these numbers, in the order of the file."""
    yield from questions_of(pq.read_table(file.path, filters=[("number", "in", numbers)]).to_pylist(), file.settings)


def questions_of(rows: Sequence[Row], settings: Mapping[str, Any]) -> Iterator[Question]:
    """The questions of a record's rows, in their order."""
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or _key(rows[end]) != _key(rows[begin]):
            yield _question(rows[begin:end], settings)
            begin = end


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("purpose", "iteration", "number", "question_id"))


def _question(rows: Sequence[Row], settings: Mapping[str, Any]) -> Question:
    by_agent: dict[str, list[Row]] = {}
    for row in rows:
        by_agent.setdefault(row["agent_id"], []).append(row)
    trajectories = {
        agent_id: Trajectory(
            {column.name: own[0][column.name] for column in (*TRAJECTORY, *ANSWER)},
            tuple(row for row in own if row[TURN[0].name] is not None),
        )
        for agent_id, own in sorted(by_agent.items(), key=lambda item: fork_path(item[0]))
    }
    question = Question(
        {column.name: rows[0][column.name] for column in QUESTION}, tuple(trajectories.values()), settings
    )
    _check_forks(question)
    return question


def _check_forks(question: Question) -> None:
    """Refuses, with a ValueError, a fork whose parent does not precede it or does not have the turns above it."""
    depths: dict[str, int] = {}
    for trajectory in question.trajectories:
        parent, inherited = trajectory.row["parent"], trajectory.row["inherited_turns"]
        if not 0 <= inherited <= (0 if parent is None else depths.get(parent, -1)):
            raise ValueError(
                f"The question {question.row['question_id']!r}: the trajectory {trajectory.agent_id!r} cannot be a"
                f" fork of {parent!r} after turn {inherited}."
            )
        depths[trajectory.agent_id] = trajectory.depth_at_end()
