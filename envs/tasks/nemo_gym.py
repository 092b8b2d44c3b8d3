"""Rows of NeMo Gym as questions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.support.data_files import check_unicode, fingerprint
from rllib_arpo.envs.tasks.rows import RowSource, all_rows, open_file
from rllib_arpo.envs.tasks.task import TRAIN, Task, check_split

#: The column with the arguments of OpenAI's Responses API; all others are the server's.
PARAMS = "responses_create_params"
#: Roles in rows -> ours.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, kw_only=True)
class NemoGymTask(Task):
    """The rows of a .jsonl file of NeMo Gym. Each split has its own file (`evaluation_config`).

    Attributes:
        path: of the file.
    """

    tools: ClassVar[tuple[str, ...]] = ()
    path: str
    split: str = TRAIN
    seed: int = 0

    def __post_init__(self) -> None:
        check_split(self.split)
        if self._source.size == 0:
            raise DataError(f"{self.path}: no rows.")

    @property
    def num_questions(self) -> int:
        return self._source.size

    def question(self, number: int, tools: Sequence[str] = ()) -> Question:
        index, row = self._source.row(self.row(number), self._source.columns or ())
        place = f"{self.path}, row {index}"
        try:
            asked = row[PARAMS]["input"]
            listed = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
            messages = tuple((_ROLES[one["role"]], _text(one["content"])) for one in listed)
            check_unicode(*(text for _, text in messages))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{place}: `{PARAMS}` must have messages of texts as `input` ({error!r}).") from error
        return Question(f"{Path(self.path).stem}/{index}", messages, (), QA, place, row=row)

    def inputs(self) -> Mapping[str, str]:
        return {self.path: fingerprint([Path(self.path)])}

    @functools.cached_property
    def _source(self) -> RowSource:
        return open_file(self.path)


def tools_of_rows(path: str) -> dict[str, Mapping[str, Any]]:
    """The tools of all rows of a file: name -> schema with a description.

    Raises:
        DataError: the file cannot be read.
    """
    tools: dict[str, Mapping[str, Any]] = {}
    for _, row in all_rows(open_file(path), (PARAMS,)):
        for tool in (row.get(PARAMS) or {}).get("tools") or ():
            if tool.get("type") == "function":
                schema = {**(tool.get("parameters") or {"type": "object", "properties": {}})}
                tools.setdefault(tool["name"], {**schema, "description": tool.get("description") or ""})
    return tools


def _text(content: Any) -> str:
    """A message's text, which may be in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
