"""Questions of the data sets in `SPECS`, from files or from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import numbers
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.question import MATH, QA, Question
from rllib_arpo.envs.support.data_files import check_unicode
from rllib_arpo.envs.support.validation import check_count
from rllib_arpo.envs.tasks.rows import MAX_FILES, RowSource, open_file, open_hub
from rllib_arpo.envs.tasks.specs import ABILITIES, MARKED, PARQUET, SPECS, DatasetSpec, Messages
from rllib_arpo.envs.tasks.task import TRAIN, Task, permutation

logger = logging.getLogger(__name__)

#: A file and the name of its layout in `SPECS`.
Part = tuple[RowSource, str]


@dataclass(frozen=True, kw_only=True)
class DatasetTask(Task):
    """The questions of a data set; training asks its rows in an order that is drawn per epoch.

    `split` selects the order, and on the hub the split. With a `path` or a `hub_split` both splits ask the same rows,
    unless `train_fraction` divides them.

    Attributes:
        task: a name in `SPECS`.
        path: a .parquet, .json or .jsonl file, or a list of them.
        hub_id: a Hugging Face data set, or a folder that `datasets` loads; without it and a path: the one in `SPECS`.
        hub_config, hub_split: its configuration and split, if they differ from the table's.
        limit: ask only this many rows, from the first on.
        train_fraction: the share of the questions that training asks; the test asks the rest. All rows with the same
            question are on one side. With the task "rows", whose worlds read all columns, this holds for rows that are
            equal in all columns. Drawn once, whatever the seed.
        ability: "math" or "qa": how answers are compared; by default the data set or the row says it.
        keep_system_prompt: use the row's own system message, as the task "rows" always does; by default it is the
            protocol's instruction.
    """

    task: str
    path: str | Sequence[str] | None = None
    hub_id: str | None = None
    hub_config: str | None = None
    hub_split: str | None = None
    split: str = TRAIN
    seed: int = 0
    limit: int | None = None
    train_fraction: float | None = None
    ability: str | None = None
    keep_system_prompt: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path and (self.hub_id or self.hub_config or self.hub_split):
            raise ValueError("env_config['path'] and env_config['hub_...'] exclude each other.")
        if self.limit is not None:
            check_count("limit", self.limit, 1)
        fraction = self.train_fraction
        if fraction is not None and not (isinstance(fraction, numbers.Real) and 0 < fraction < 1):
            raise ValueError(f"env_config['train_fraction'] must be between 0 and 1, not {fraction!r}.")
        if self.ability not in (None, MATH, QA):
            raise ValueError(f"env_config['ability'] must be {MATH!r} or {QA!r}, not {self.ability!r}.")
        if self.num_questions == 0:
            names = ", ".join(source.name for source, _ in self._parts)
            skipped = ", ".join(reason for part in self._parts for reason in _askable(*part)[1])
            none = "no rows" if fraction is None else f"env_config['train_fraction'] leaves {self.split!r} no question"
            raise DataError(f"{names}: {skipped or none}.")

    @property
    def tools(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(tool for _, name in self._parts for tool in SPECS[name].tools))

    @property
    def num_questions(self) -> int:
        return len(self._chosen)

    def question(self, number: int, tools: Sequence[str] = ()) -> Question:
        (source, name), index = self._locate(number)
        spec = SPECS[name]
        row_number, found = source.row(index, spec.columns)
        place = f"{source.name}, row {row_number}"
        try:
            row = spec.decode(found)
            # A layout that was only recognised says less about a row than the row itself.
            stated = ABILITIES.get(str(row.get("ability")).lower()) if self.task == PARQUET else None
            messages, answers, ability = read_row(spec, row, self.ability or stated)
            own_id = row.get(spec.row_id) if spec.row_id else None
            check_unicode(str(own_id))
        except ValueError as error:
            other = layout_of(source) if isinstance(error, MissingColumnError) else None
            hint = f"; env_config['task'] = {other!r} reads such rows" if other else ""
            raise DataError(f"{place}: {error}{hint}.") from error
        if not (self.keep_system_prompt or spec.whole):
            messages = [message for message in messages if message[0] != "system"]
        question_id = f"{self._stem(source)}/{row_number}{f' ({own_id})' if own_id is not None else ''}"
        begin = found if spec.whole else {}
        return Question(question_id, tuple(messages), answers, ability, place, row=begin)

    def inputs(self) -> Mapping[str, str]:
        return {source.name: source.mark() for source, _ in self._parts}

    def _locate(self, number: int) -> tuple[Part, int]:
        """The file of question `number`, and the row in it."""
        row = int(self._chosen[self.row(number, stream=1)])
        for part in self._parts:
            if row < part[0].size:
                return part, row
            row -= part[0].size
        raise AssertionError(f"There is no question {number}.")

    @functools.cached_property
    def _parts(self) -> tuple[Part, ...]:
        return tuple(
            (source, layout_of(source) or PARQUET if self.task == PARQUET else self.task) for source in self._sources()
        )

    def _sources(self) -> tuple[RowSource, ...]:
        if self.path:
            paths = [self.path] if isinstance(self.path, str | os.PathLike) else self.path
            if not (isinstance(paths, list | tuple) and all(isinstance(path, str | os.PathLike) for path in paths)):
                raise ValueError(f"env_config['path'] must be a file's name, or a list of them, not {self.path!r:.80}.")
            return tuple(open_file(str(path)) for path in paths)
        hub = SPECS[self.task].hub
        hub_id = self.hub_id or (hub and hub.hub_id)
        if hub_id is None:
            raise ValueError("env_config['path'] must name a .parquet, .json or .jsonl file, or a list of them.")
        split = self.hub_split or (hub.splits.get(self.split) if hub else self.split)
        if split is None:
            raise ValueError(
                f"{hub_id} has no split for env_config['split'] = {self.split!r}: name one by env_config['hub_split']."
            )
        config = self.hub_config or (hub.config if hub and hub_id == hub.hub_id else None)
        return (open_hub(hub_id, config, split),)

    @functools.cached_property
    def _chosen(self) -> np.ndarray:
        """The rows that are asked, [n] int64, ascending, counted through all files."""
        chosen = np.flatnonzero(np.concatenate([np.zeros(0, bool), *(_askable(*part)[0] for part in self._parts)]))
        if self.train_fraction is not None:
            questions = _same_questions(self._parts)
            drawn = permutation(0, 0, len(np.unique(questions)))
            cut = round(self.train_fraction * len(drawn))
            chosen = chosen[np.isin(questions, drawn[:cut] if self.split == TRAIN else drawn[cut:])]
        return chosen[: self.limit]

    def _stem(self, source: RowSource) -> str:
        """The source's short name in question ids; the whole path where several files have the same."""
        stems = [_stem(one.name) for one, _ in self._parts]
        return _stem(source.name) if stems.count(_stem(source.name)) == 1 else source.name


class MissingColumnError(ValueError):
    """A row has no question or no answer where its layout has one."""


def read_row(spec: DatasetSpec, row: Mapping[str, Any], ability: str | None) -> tuple[Messages, tuple[str, ...], str]:
    """(messages, right answers, ability) of a decoded row; `ability` overrides what the data set or the row says.

    Raises:
        ValueError: the row lacks something, or is not valid Unicode.
    """
    messages = _asked(spec, row)
    answers: tuple[str, ...] = ()
    if (column := _present(spec.answers, row, optional=spec.whole)) is not None:
        read = spec.answers[column]
        names = [column, *(name for name in spec.aliases if row.get(name))]
        # What a world begins with need not be an answer.
        with contextlib.suppress(ValueError) if spec.whole else contextlib.nullcontext():
            answers = tuple(dict.fromkeys(answer for name in names for answer in _read(read, name, row[name])))
        if not (answers or spec.whole):
            raise ValueError(f"no answer (`{column}` is empty)")
    check_unicode(*(content for _, content in messages), *answers)
    own = row.get("ability")
    ability = ability or spec.ability or ABILITIES.get(str(own).lower()) or (QA if spec.whole else None)
    if ability is None:
        raise ValueError(f"set env_config['ability'] to {MATH!r} or {QA!r}, since the row's `ability` is {own!r}")
    return messages, answers, ability


def _asked(spec: DatasetSpec, row: Mapping[str, Any]) -> Messages:
    column = _present(spec.question, row, optional=spec.whole)
    if column is None or (spec.whole and not (isinstance(row[column], str | list) and row[column])):
        return []
    return _read(spec.read_question, column, row[column])


def _read(reader: Callable[[Any], Any], column: str, value: Any) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"`{column}` {error}") from error


def _present(columns: Sequence[str] | Mapping[str, Any], row: Mapping[str, Any], *, optional: bool) -> str | None:
    """The first of these columns that the row has; None: it may do without, and does."""
    for column in columns:
        if row.get(column) is not None:
            return column
    if optional:
        return None
    raise MissingColumnError(f"no {' or '.join(f'`{name}`' for name in columns)}")


@functools.lru_cache(MAX_FILES)
def layout_of(source: RowSource) -> str | None:
    """The name in `SPECS` of the first layout that fits the first row."""
    try:
        row = source.first(MARKED)
    except DataError:  # It raises again when the row is asked.
        row = {}
    return next((name for name, spec in SPECS.items() if spec.fits(row)), None)


@functools.lru_cache(MAX_FILES)
def _askable(source: RowSource, name: str) -> tuple[np.ndarray, list[str]]:
    """Which rows can be asked, [n] bool, and in words how many cannot, and why, which it also logs."""
    skip = SPECS[name].skip
    columns = source.known(tuple(skip))
    askable, counts = np.ones(source.size, bool), Counter[str]()
    for index in range(source.size if columns else 0):
        with contextlib.suppress(DataError):  # It raises again when the row is asked.
            row = source.row(index, columns)[1]
            found = [skip[name].get("") or skip[name].get(str(row[name])) for name in columns if row.get(name)]
            askable[index] = not any(found)
            counts.update(set(filter(None, found)))
    said = [f"{count} of {source.size} rows are skipped: they have {reason}" for reason, count in counts.items()]
    for sentence in said:
        logger.warning("%s: %s.", source.name, sentence)
    return askable, said


@functools.lru_cache(maxsize=16)
def _same_questions(parts: tuple[Part, ...]) -> np.ndarray:
    """For each row that can be asked the number of its question, [n] int64, in the order in which questions appear.

    Logs how many rows repeat a question.
    """
    found = (_digest(*part, index) for part in parts for index in np.flatnonzero(_askable(*part)[0]).tolist())
    digests = np.fromiter(found, np.uint64)
    _, first, questions = np.unique(digests, return_index=True, return_inverse=True)
    if repeated := len(digests) - len(first):
        names = ", ".join(source.name for source, _ in parts)
        logger.warning("%s: %d of %d rows repeat the question of an earlier row.", names, repeated, len(digests))
    return np.argsort(np.argsort(first))[questions]


def _digest(source: RowSource, name: str, index: int) -> int:
    """A number that rows share if they ask the same, whatever its upper case, blanks and Unicode form."""
    spec = SPECS[name]
    try:
        row = spec.decode(source.row(index, spec.columns)[1])
        asked = "".join(content for role, content in _asked(spec, row) if role != "system")
        text = repr(sorted(row.items())) if spec.whole else asked
    except (DataError, ValueError):  # It raises again when the row is asked.
        text = f"{source.name} {index}"
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())


def _stem(name: str) -> str:
    return Path(name).stem if Path(name).suffix in (".parquet", ".json", ".jsonl") else name
