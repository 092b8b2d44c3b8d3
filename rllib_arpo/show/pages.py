"""Fills the templates of questions and of the index of a run, and writes the pages into a folder."""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from rllib_arpo.core import figures
from rllib_arpo.core.tree import Trajectory
from rllib_arpo.record.question import PlacedTurn, RecordedQuestion
from rllib_arpo.record.read import RecordFile, questions, record_files
from rllib_arpo.record.schema import EVALUATION
from rllib_arpo.show import drawing, words

#: The columns of the index.
INDEX_COLUMNS = (
    "question", "from", "mean reward", "best", "leaves", "forks", "mean dH", "seconds", "tools", "stop reasons"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """A question with its layout."""

    question: RecordedQuestion
    layout: drawing.TreeDrawing

    def lines(self) -> list[Trajectory]:
        """The trajectories in the order in which they are drawn."""
        by_id = self.question.tree.by_id()
        return [by_id[agent_id] for agent_id in self.layout.lines]

    def turn_id(self, placed: PlacedTurn) -> str:
        return f"turn-{placed.trajectory.agent_id}-{placed.own}"

    def node_id(self, placed: PlacedTurn) -> str:
        return f"node-{placed.trajectory.agent_id}-{placed.own}"

    def fork_parent_x(self, trajectory: Trajectory) -> int:
        """Where the edge to a fork leaves its parent's line: at the tool's mark."""
        return self.layout.x(trajectory.num_inherited_turns) - drawing.GAP // 2

    def label(self, placed: PlacedTurn) -> str:
        """A turn in words, for a screen reader."""
        name, turn = f"Trajectory {placed.trajectory.agent_id}, turn {placed.depth + 1}", placed.turn
        parts = [f"{name}: {words.tokens(len(turn.token_ids))}"]
        if turn.decision is not None:
            parts.append(words.decision(placed).rstrip("."))
        return "; ".join([*parts, *filter(None, [words.call(placed), words.new_context(placed)])])


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the index."""

    href: str
    question: RecordedQuestion

    def best(self) -> float:
        return float(self.question.tree.returns().max())

    def mean(self) -> float:
        return float(self.question.tree.returns().mean())

    def mean_delta(self) -> float | None:
        """The mean over trajectories from the prompt. Forks would bias it, since they start at a high entropy."""
        roots = [trajectory for trajectory in self.question.tree.trajectories if trajectory.parent is None]
        deltas = [turn.decision.delta for root in roots for turn in root.turns if turn.decision is not None]
        return sum(deltas) / len(deltas) if deltas else None


def question_page(question: RecordedQuestion) -> str:
    panel = Panel(question, drawing.tree_layout(question.tree))
    return _filled("question.html", title=question.tree.question_id, panel=panel, question=question)


def index_page(title: str, entries: Sequence[Entry]) -> str:
    """The list of a run's questions, with filters."""
    return _filled(
        "index.html",
        title=title,
        entries=entries,
        columns=INDEX_COLUMNS,
        purposes=sorted({entry.question.facts.purpose for entry in entries}, reverse=True),
        stop_reasons=sorted({reason for entry in entries for reason in figures.stop_reasons(entry.question.tree)}),
        tools=sorted({tool for entry in entries for tool in figures.tool_names(entry.question.tree)}),
    )


def _filled(template: str, **values: Any) -> str:
    shared = {"words": words, "figures": figures, "drawing": drawing, "number": words.number}
    return _environment().get_template(template).render(**values, **shared)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rllib_arpo.show", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["csp_hash"] = csp_hash
    return environment


def csp_hash(text: str) -> str:
    """The source that lets a Content Security Policy allow exactly this inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


INDEX = "index.html"
#: Maximum length of a page's name without its ending; file systems allow 255 bytes.
MAX_NAME_BYTES = 120


def last_questions(place: str, question_id: str | None, limit: int) -> list[RecordedQuestion]:
    """The last `limit` questions of a record.

    Those of training come first, and of these the ones whose returns differ most. If there are more than `limit`, at
    least half of them are not of evaluations, as far as the record has so many.

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
    return sorted(found, key=lambda q: (q.facts.purpose == EVALUATION, -float(np.ptp(q.tree.returns()))))


def make_pages(title: str, shown: Iterable[RecordedQuestion]) -> Iterator[tuple[str, bytes]]:
    """(name of the file, page) of each question; at last the index, if there are several."""
    entries: list[Entry] = []
    names: set[str] = set()
    for question in shown:
        name = _file_name(question, names)
        names.add(name)
        yield name, question_page(question).encode()
        entries.append(Entry(name, question))
    if len(entries) > 1:
        yield INDEX, index_page(title, entries).encode()


def write_files(folder: Path, files: Iterable[tuple[str, bytes]]) -> list[Path]:
    """Writes files, given as (name, content), into a folder; a name may contain folders. Returns their paths."""
    paths = []
    for name, content in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        paths.append(path)
    return paths


def _backwards(files: Sequence[RecordFile], question_id: str | None) -> Iterator[RecordedQuestion]:
    for file in reversed(files):
        yield from reversed(list(questions(file, question_id)))


def _nothing(place: str, question_id: str | None) -> str:
    if question_id is None:
        return f"{place}: the record has no question."
    known = next((question.tree.question_id for question in _backwards(record_files(place), None)), None)
    return f"{place}: the record does not have the question {question_id!r}; its last one is {known!r}."


def _file_name(question: RecordedQuestion, taken: set[str]) -> str:
    """A name such as "evaluation-00008-trails_test_3.html"."""
    facts = question.facts
    # A record may come from anybody, so its texts are not safe in a path.
    slug = re.sub(r"[^\w.-]+", "_", f"{facts.purpose}-{facts.iteration:05d}-{question.tree.question_id}")
    stem = name = slug.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    count = 1
    while f"{name}.html" in taken:
        count += 1
        name = f"{stem}-{count}"
    return f"{name}.html"
