"""Writes pages into a folder: one for each question, and the index that links them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from rllib_arpo.record.read import Question, RecordFile, questions, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER
from rllib_arpo.record.schema import EVALUATION
from rllib_arpo.show.page import Entry, index_page, question_page

INDEX = "index.html"
#: The longest name of a page, without its ending; file systems allow 255 bytes.
MAX_NAME_BYTES = 120


def last_questions(place: str, question_id: str | None, limit: int) -> list[list[Question]]:
    """The last `limit` questions of a record, each alone in a list: trained ones with forks first, evaluations last.

    If there are more, at least half of them are not of evaluations, as far as the record has so many.

    Raises:
        ValueError: there is no such record, or no such question in it.
    """
    files = record_files(place)
    evaluations = [file for file in files if file.path.name.startswith(EVALUATION)]
    evaluated = list(islice(_backwards(evaluations, question_id), limit))
    others = list(islice(_backwards([file for file in files if file not in evaluations], question_id), limit))
    found = others[: max(limit - len(evaluated), -(-limit // 2))]
    found = [*reversed(found), *reversed(evaluated[: limit - len(found)])]
    if not found:
        raise ValueError(_nothing(place, question_id))
    return [[q] for q in sorted(found, key=lambda q: (q.row["purpose"] == EVALUATION, q.num_forks() == 0))]


def pairs(before: str, after: str, question_id: str | None, limit: int) -> list[list[Question]]:
    """Questions of both records, each as [the first one in `before`, the last one in `after`].

    Raises:
        ValueError: a record is missing, or the two have no such question in common.
    """
    first = {_name(question): question for question in _backwards(record_files(before), question_id)}
    last: dict[str, Question] = {}
    for question in _backwards(record_files(after), question_id):
        last.setdefault(_name(question), question)
    common = [[question, last[name]] for name, question in first.items() if name in last]
    if not common:
        which = "any question" if question_id is None else f"the question {question_id!r}"
        raise ValueError(f"{before} and {after} do not both have {which}.")
    return common[:limit]


def make_pages(title: str, shown: Iterable[Sequence[Question]]) -> Iterator[tuple[str, str]]:
    """(name of the file, page) of each question (or pair); at last the index, if there are several."""
    entries: list[Entry] = []
    names: set[str] = set()
    for group in shown:
        name = _file_name(group, names)
        names.add(name)
        yield name, question_page(group)
        entries.append(Entry(name, group[-1]))
    if len(entries) > 1:
        yield INDEX, index_page(title, entries)


def write_pages(folder: Path, title: str, shown: Iterable[Sequence[Question]]) -> list[Path]:
    """Writes the pages; returns their paths, the index first."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, page in make_pages(title, shown):
        (folder / name).write_text(page, encoding="utf-8")
        paths.append(folder / name)
    return paths[-1:] + paths[:-1]


def tree_files(folder: Path, limit: int) -> dict[str, bytes]:
    """Path -> page, of a few questions of the last iteration, and of the first and the last evaluation side by side.

    Args:
        folder: of a trial; it may have no record.
        limit: of each kind, at most so many questions.
    """
    record = folder / RECORD_FOLDER
    trained, evaluated = (sorted(record.glob(f"{kind}-*.parquet")) for kind in ("iteration", "evaluation"))
    groups: dict[str, list[list[Question]]] = {}
    if trained:
        groups["last_iteration"] = last_questions(str(trained[-1]), None, limit)
    if len(evaluated) > 1:
        groups["before_and_after"] = pairs(str(evaluated[0]), str(evaluated[-1]), None, limit)
    elif evaluated:
        groups["evaluation"] = last_questions(str(evaluated[0]), None, limit)
    return {
        f"{group}/{name}": page.encode()
        for group, shown in groups.items()
        for name, page in make_pages(f"{folder.name}, {group.replace('_', ' ')}", shown)
    }


def _backwards(files: Sequence[RecordFile], question_id: str | None) -> Iterator[Question]:
    for file in reversed(files):
        yield from reversed(list(questions(file, question_id)))


def _name(question: Question) -> str:
    return question.row["question_id"]


def _nothing(place: str, question_id: str | None) -> str:
    if question_id is None:
        return f"{place}: the record has no question."
    known = next((_name(question) for question in _backwards(record_files(place), None)), None)
    return f"{place}: the record has no question {question_id!r}; its last one is {known!r}."


def _file_name(group: Sequence[Question], taken: set[str]) -> str:
    """E.g. "evaluation-00008-catalogue_test_3_lamp.html"; of a pair, "compared-..."."""
    row = group[0].row
    kind = "compared" if len(group) > 1 else f"{row['purpose']}-{row['iteration']:05d}"
    # The texts come from outside: a record may be anybody's.
    slug = re.sub(r"[^\w.-]+", "_", f"{kind}-{row['question_id']}")
    stem = name = slug.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    count = 1
    while f"{name}.html" in taken:
        count += 1
        name = f"{stem}-{count}"
    return f"{name}.html"
