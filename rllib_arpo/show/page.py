"""Makes the pages: one question, the same question twice side by side, the index of a run, and its plots."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from rllib_arpo.record.read import Question, Row, Trajectory
from rllib_arpo.show import layout, shades, words
from rllib_arpo.show.layout import TimeLine, TreeDrawing, neighbours, time_line, tree_layout
from rllib_arpo.show.outline import outline

#: The columns of the index.
INDEX_COLUMNS = (
    "question", "from", "mean reward", "best", "leaves", "forks", "mean dH", "seconds", "tools", "stop reasons"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """A question as its part of a page needs it; `prefix` makes the page's ids unique."""

    prefix: str
    question: Question
    layout: TreeDrawing
    lines: Sequence[Trajectory]
    time_line: TimeLine | None
    keys: Mapping[tuple[str, int], Mapping[str, tuple[str, int]]]
    outline: str

    def turn_id(self, agent_id: str, turn: int) -> str:
        return f"{self.prefix}turn-{agent_id}-{turn}"

    def node_id(self, agent_id: str, turn: int) -> str:
        return f"{self.prefix}node-{agent_id}-{turn}"

    def fork_parent_x(self, trajectory: Trajectory) -> int:
        """The point at which the edge to a fork leaves its parent's line: at the mark of the tool."""
        return self.layout.x(trajectory.row["inherited_turns"]) - layout.GAP // 2

    def label(self, turn: Row, trajectory: Trajectory) -> str:
        """The words of a screen reader for a turn."""
        parts = [f"Trajectory {trajectory.agent_id}, turn {turn['depth'] + 1}: {words.tokens(len(turn['token_ids']))}"]
        if turn["delta"] is not None:
            parts.append(words.decision(turn, trajectory, self.question).rstrip("."))
        if called := words.call(turn):
            parts.append(called)
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the index."""

    href: str
    question: Question

    def best(self) -> float:
        return max(trajectory.row["reward"] for trajectory in self.question.trajectories)

    def mean(self) -> float:
        rewards = [trajectory.row["reward"] for trajectory in self.question.trajectories]
        return sum(rewards) / len(rewards)

    def mean_delta(self) -> float | None:
        deltas = [turn["delta"] for turn in self.question.turns() if turn["delta"] is not None]
        return sum(deltas) / len(deltas) if deltas else None


def question_page(questions: Sequence[Question]) -> str:
    """The page of a question, or of two records of the same question side by side."""
    panels = [panel(question, f"{chr(ord('a') + i)}-") for i, question in enumerate(questions)]
    return (
        _environment()
        .get_template("question.html")
        .render(title=questions[0].row["question_id"], panels=panels, **_shared())
    )


def index_page(title: str, entries: Sequence[Entry]) -> str:
    """The list of a run's questions, with filters."""
    return (
        _environment()
        .get_template("index.html")
        .render(
            title=title,
            entries=entries,
            columns=INDEX_COLUMNS,
            purposes=sorted({entry.question.row["purpose"] for entry in entries}, reverse=True),
            stop_reasons=sorted({reason for entry in entries for reason in entry.question.stop_reasons()}),
            tools=sorted({tool for entry in entries for tool in entry.question.tools()}),
            **_shared(),
        )
    )


def plots_page(title: str, drawn: Sequence[Any]) -> str:
    """All plots of a run.

    Args:
        drawn: `Drawn` of plots/gallery.py, which imports matplotlib.
    """
    return _environment().get_template("plots.html").render(title=title, drawn=drawn, **_shared())


def panel(question: Question, prefix: str) -> Panel:
    drawn = tree_layout(question)
    by_id = {trajectory.agent_id: trajectory for trajectory in question.trajectories}
    return Panel(
        prefix=prefix,
        question=question,
        layout=drawn,
        lines=[by_id[agent_id] for agent_id in drawn.lines],
        time_line=time_line(question, drawn),
        keys=neighbours(question, drawn),
        outline=outline(question),
    )


def _shared() -> dict[str, Any]:
    return {"words": words, "shades": shades, "sizes": layout, "number": words.number}


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
    """The source by which a Content Security Policy allows exactly this inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
