"""Writes pages into a folder: one for each question, and the index that links them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from rllib_arpo.show.page import Entry, index_page, question_page
from rllib_arpo.show.records import Question, questions, record_files

INDEX = "index.html"
#: Longest part of a question's name in a file's name.
MAX_NAME_LENGTH = 60


def last_questions(place: str, question_id: str | None, limit: int) -> list[list[Question]]:
    """The last `limit` questions of a record, in its order, each alone in a list.

    Raises:
        ValueError: there is no such record, or no such question in it.
    """
    latest_first = (question for question in _backwards(place, question_id))
    found = list(islice(latest_first, limit))
    if not found:
        raise ValueError(_nothing(place, question_id))
    return [[question] for question in reversed(found)]


def pairs(before: str, after: str, question_id: str | None, limit: int) -> list[list[Question]]:
    """Questions of both records, each as [the first one in `before`, the last one in `after`].

    Raises:
        ValueError: a record is missing, or the two have no such question in common.
    """
    first = {_name(question): question for question in _backwards(before, question_id)}
    last: dict[str, Question] = {}
    for question in _backwards(after, question_id):
        last.setdefault(_name(question), question)
    common = [[question, last[name]] for name, question in first.items() if name in last]
    if not common:
        which = "any question" if question_id is None else f"the question {question_id!r}"
        raise ValueError(f"{before} and {after} do not both have {which}.")
    return common[:limit]


def write_pages(folder: Path, title: str, shown: Iterable[Sequence[Question]]) -> list[Path]:
    """Writes a page for each question (or pair), and the index if there are several; returns the paths, index first."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[Entry] = []
    names: set[str] = set()
    for group in shown:
        name = _file_name(group, names)
        names.add(name)
        (folder / name).write_text(question_page(group), encoding="utf-8")
        entries.append(Entry(name, group[-1]))
    pages = [folder / entry.href for entry in entries]
    if len(pages) < 2:
        return pages
    (folder / INDEX).write_text(index_page(title, entries), encoding="utf-8")
    return [folder / INDEX, *pages]


def _backwards(place: str, question_id: str | None) -> Iterator[Question]:
    for file in reversed(record_files(place)):
        yield from reversed(list(questions(file, question_id)))


def _name(question: Question) -> str:
    return question.row["question_id"]


def _nothing(place: str, question_id: str | None) -> str:
    if question_id is None:
        return f"{place}: the record has no question."
    known = next((_name(question) for question in _backwards(place, None)), None)
    return f"{place}: the record has no question {question_id!r}; its last one is {known!r}."


def _file_name(group: Sequence[Question], taken: set[str]) -> str:
    """E.g. "evaluation-00008-catalogue_test_3_lamp.html"; of a pair, "compared-..."."""
    row = group[0].row
    kind = "compared" if len(group) > 1 else f"{row['purpose']}-{row['iteration']:05d}"
    slug = re.sub(r"[^\w.-]+", "_", row["question_id"])[:MAX_NAME_LENGTH]
    stem = name = f"{kind}-{slug}"
    count = 1
    while f"{name}.html" in taken:
        count += 1
        name = f"{stem}-{count}"
    return f"{name}.html"
