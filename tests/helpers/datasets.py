"""Rows of data sets in the columns of their publishers (`layouts.jsonl`, written by hand), and files of them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_arpo.envs.tasks import DatasetTask
from tests.helpers.parquet import parquet


@dataclass
class Layout:
    """A data set's rows, and the questions and right answers that they stand for.

    Attributes:
        task: the layout's name in `SPECS`.
        recognised: whether the task "parquet" finds the layout itself.
        ability: "math" or "qa".
        keys: of `env_config`, which the task "parquet" needs beside `path`.
    """

    task: str
    recognised: bool
    ability: str
    keys: dict[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[tuple[str, ...]] = field(default_factory=list)


#: Name of a data set -> its rows.
LAYOUTS: dict[str, Layout] = {}
for _line in Path(__file__).with_name("layouts.jsonl").read_text(encoding="utf-8").splitlines():
    _read = json.loads(_line)
    _of_all = _read["task"], _read.get("recognised", False), _read["ability"], _read.get("keys", {})
    _layout = LAYOUTS.setdefault(_read["data"], Layout(*_of_all))
    _layout.rows.append(_read["row"])
    _layout.questions.append(_read["asks"])
    _layout.answers.append(tuple(_read["answers"]))


def json_lines(path, records) -> str:
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def json_list(path, records) -> str:
    Path(path).write_text(json.dumps(records))
    return str(path)


WRITERS = {"parquet": parquet, "jsonl": json_lines, "json": json_list}


def gsm8k(n: int) -> list[dict]:
    return [{"question": f"Question {i}?", "answer": f"#### {i}"} for i in range(n)]


def dapo(question: str) -> dict[str, Any]:
    """A row of DAPO's with another question."""
    return json.loads(json.dumps(LAYOUTS["DAPO-Math-17k"].rows[0]).replace("What is 1 + 1?", question))


def row_of(task: str) -> dict[str, Any]:
    """The first row of this task."""
    return next(layout.rows[0] for layout in LAYOUTS.values() if layout.task == task)


def asked(task: DatasetTask, numbers=None) -> list[int]:
    numbers = range(task.num_questions) if numbers is None else numbers
    return [int(task.question(n).answers[0]) for n in numbers]
