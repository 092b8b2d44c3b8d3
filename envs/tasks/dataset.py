"""Questions of the data sets in `SPECS`, from files or from the Hugging Face hub."""

from __future__ import annotations

import functools
import logging
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.question import MATH, QA, Question
from rllib_arpo.envs.support.data_files import check_unicode
from rllib_arpo.envs.support.validation import check_count
from rllib_arpo.envs.tasks.rows import RowSource, all_rows, open_file, open_hub
from rllib_arpo.envs.tasks.shots import MAX_SHOTS, SHOTS
from rllib_arpo.envs.tasks.specs import SPECS, DatasetSpec
from rllib_arpo.envs.tasks.task import TRAIN, Task, permutation

logger = logging.getLogger(__name__)
_CHOOSE = "env_config['train_fraction'] and what is skipped"


@dataclass(frozen=True, kw_only=True)
class DatasetTask(Task):
    """The questions of a data set; training asks its rows in an order that is drawn per epoch.

    `split` selects the order, and on the hub the split. With a `path` both splits ask the same rows, unless
    `train_fraction` divides them.

    Attributes:
        task: a name in `SPECS`.
        path: a .parquet, .json or .jsonl file, or a list of them.
        hub_id: a Hugging Face data set, or a folder that `datasets` loads; without it and a path: the one in `SPECS`.
        hub_config, hub_split: its configuration and split, if they differ from the table's.
        limit: ask only this many rows, from the first on.
        train_fraction: the share of the rows that training asks; the test asks the rest. Drawn once, whatever the seed.
        few_shot: worked examples before the question: 0, 1 or 2.
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
    few_shot: int = 0
    keep_system_prompt: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path and (self.hub_id or self.hub_config or self.hub_split):
            raise ValueError("env_config['path'] and env_config['hub_...'] exclude each other.")
        if self.few_shot not in range(MAX_SHOTS + 1):
            raise ValueError(f"env_config['few_shot'] must be from 0 to {MAX_SHOTS}, not {self.few_shot!r}.")
        if self.limit is not None:
            check_count("limit", self.limit, 1)
        fraction = self.train_fraction
        if fraction is not None and not (isinstance(fraction, numbers.Real) and 0 < fraction < 1):
            raise ValueError(f"env_config['train_fraction'] must be between 0 and 1, not {fraction!r}.")
        if self.num_questions == 0:
            left = "no rows" if not sum(source.size for source in self._sources) else f"{_CHOOSE} leave no rows"
            raise DataError(f"{', '.join(source.name for source in self._sources)}: {left}.")

    @property
    def spec(self) -> DatasetSpec:
        return SPECS[self.task]

    @property
    def tools(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.spec.tools

    @property
    def num_questions(self) -> int:
        return len(self._chosen)

    def question(self, number: int, tools: Sequence[str] = ()) -> Question:
        source, index = self._locate(number)
        columns = (source.columns or ()) if self.spec.whole else self.spec.columns
        row_number, found = source.row(index, columns)
        place = f"{source.name}, row {row_number}"
        try:
            row = self.spec.decode(found)
            messages, answers, ability = read_row(self.spec, row)
            own_id = row.get(self.spec.row_id) if self.spec.row_id else None
            check_unicode(str(own_id))
        except ValueError as error:
            raise DataError(f"{place}: {error}.") from error
        if not (self.keep_system_prompt or self.spec.whole):
            messages = [message for message in messages if message[0] != "system"]
        shots = SHOTS.get(ability, ())[: self.few_shot]
        question_id = f"{self._stem(source)}/{row_number}{f' ({own_id})' if own_id is not None else ''}"
        begin = found if self.spec.whole else {}
        return Question(question_id, tuple(messages), answers, ability, place, shots, row=begin)

    def inputs(self) -> Mapping[str, str]:
        return {source.name: source.mark() for source in self._sources}

    def _locate(self, number: int) -> tuple[RowSource, int]:
        """The source of question `number`, and the row in it."""
        row = int(self._chosen[self.row(number, stream=1)])
        ends = np.cumsum([source.size for source in self._sources])
        place = int(np.searchsorted(ends, row, side="right"))
        source = self._sources[place]
        return source, row - int(ends[place]) + source.size

    @functools.cached_property
    def _sources(self) -> tuple[RowSource, ...]:
        if self.path:
            paths = [self.path] if isinstance(self.path, str | os.PathLike) else self.path
            if not (isinstance(paths, list | tuple) and all(isinstance(path, str | os.PathLike) for path in paths)):
                raise ValueError(f"env_config['path'] must be a file's name, or a list of them, not {self.path!r:.80}.")
            return tuple(open_file(str(path)) for path in paths)
        hub = self.spec.hub
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
        """The rows that are asked, [n] int64, ascending, counted through all sources."""
        skip = tuple(self.spec.skip.items())
        chosen = np.flatnonzero(np.concatenate([np.zeros(0, bool), *(_askable(one, skip) for one in self._sources)]))
        if self.train_fraction is not None:
            drawn = permutation(0, 0, len(chosen))
            cut = round(self.train_fraction * len(chosen))
            chosen = chosen[np.sort(drawn[:cut] if self.split == TRAIN else drawn[cut:])]
        return chosen[: self.limit]

    def _stem(self, source: RowSource) -> str:
        """The source's short name in question ids; the whole path where several files have the same."""
        stems = [_stem(one.name) for one in self._sources]
        return _stem(source.name) if stems.count(_stem(source.name)) == 1 else source.name


def read_row(spec: DatasetSpec, row: Mapping[str, Any]) -> tuple[list[tuple[str, str]], tuple[str, ...], str]:
    """(messages, right answers, ability) of a decoded row.

    Raises:
        ValueError: the row lacks something, or is not valid Unicode.
    """
    messages: list[tuple[str, str]] = []
    if (column := _present(spec.question, row, optional=spec.whole)) is not None:
        messages = _read(spec.read_question, column, row[column])
    answers: tuple[str, ...] = ()
    if (column := _present(spec.answers, row, optional=spec.whole)) is not None:
        read = spec.answers[column]
        names = [column, *(name for name in spec.aliases if row.get(name))]
        answers = tuple(dict.fromkeys(answer for name in names for answer in _read(read, name, row[name])))
        if not (answers or spec.whole):
            raise ValueError(f"no answer (`{column}` is empty)")
    check_unicode(*(content for _, content in messages), *answers)
    ability = spec.ability or row.get("ability")
    if ability not in (MATH, QA):
        raise ValueError(f"`ability` must be {MATH!r} or {QA!r}, not {ability!r}")
    return messages, answers, ability


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
    raise ValueError(f"no {' or '.join(f'`{name}`' for name in columns)}")


@functools.lru_cache(maxsize=16)
def _askable(source: RowSource, skip: tuple[tuple[str, str], ...]) -> np.ndarray:
    """Marks the rows that can be asked, [n] bool. Logs how many cannot, and why.

    Args:
        skip: the items of `DatasetSpec.skip`.
    """
    num_rows, reasons = source.size, dict(skip)
    columns = source.known(tuple(reasons))
    if not columns:
        return np.ones(num_rows, bool)
    rows = (row for _, row in all_rows(source, columns))
    has = np.array([[bool(row.get(name)) for name in columns] for row in rows], bool).reshape(num_rows, len(columns))
    for name, count in zip(columns, has.sum(0), strict=True):
        if count:
            logger.warning("%s: %d of %d rows are skipped: they have %s.", source.name, count, num_rows, reasons[name])
    return np.logical_not(has.any(1))


def _stem(name: str) -> str:
    return Path(name).stem if Path(name).suffix in (".parquet", ".json", ".jsonl") else name
