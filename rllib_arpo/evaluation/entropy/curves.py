"""Mean entropy by token position, with an interval over questions: pure functions of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.intervals import half_width
from rllib_arpo.record.read import Row

#: Names of groups of turns: those after the prompt, those after any tool response, after one tool's, after the n-th.
START, AFTER_TOOLS = "start", "after tools"


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean entropy by position, up to the last position that any turn has.

    Each question counts once, by the mean of its turns that have the position, since its samples are not independent of
    each other. Only long turns contribute to the mean at late positions.

    Attributes:
        mean: [P] nats.
        half_width: [P] nats, of the 95 % t interval over questions; NaN if fewer than two have the position.
        num_questions, num_turns: [P], the numbers of those that have the position.
    """

    mean: np.ndarray
    half_width: np.ndarray
    num_questions: np.ndarray
    num_turns: np.ndarray


def entropy_curve(turns: Sequence[tuple[int, Sequence[float] | np.ndarray]], num_positions: int) -> Curve:
    """The curve of turns (question, entropies [n] in nats) over their first `num_positions` tokens.

    `mean_p = 1/|Q_p| sum_q m_qp`, where m_qp is the mean of H_p over the turns of question q that have more than p
    tokens, and Q_p are the questions with such a turn; `half_width_p = t s_p / sqrt(|Q_p|)`, s_p the standard deviation
    of m_qp over Q_p (ddof = 1).
    """
    rows = {question: row for row, question in enumerate(dict.fromkeys(question for question, _ in turns))}
    sums, counts = np.zeros((len(rows), num_positions)), np.zeros((len(rows), num_positions), int)
    for question, entropies in turns:
        n = min(len(entropies), num_positions)
        sums[rows[question], :n] += entropies[:n]
        counts[rows[question], :n] += 1
    has = counts > 0
    length = int(has.any(axis=0).sum())
    sums, counts, has = sums[:, :length], counts[:, :length], has[:, :length]
    by_question = np.divide(sums, counts, out=np.zeros_like(sums), where=has)
    num_questions = has.sum(axis=0)
    mean = by_question.sum(axis=0) / num_questions
    squares = (np.where(has, by_question - mean, 0.0) ** 2).sum(axis=0)
    deviation = np.sqrt(squares / np.maximum(num_questions - 1, 1))
    return Curve(mean, half_width(deviation, num_questions), num_questions, counts.sum(axis=0))


def entropy_curves(turns: Iterable[Row], num_positions: int) -> dict[str, Curve]:
    """Group -> its curve: `START`, `AFTER_TOOLS`, "tool NAME", "round 1", "round 2", ...; only groups with turns."""
    groups = groups_of(turns)
    pairs = {name: [(turn["number"], turn["entropies"]) for turn in group] for name, group in groups.items()}
    return {name: entropy_curve(group, num_positions) for name, group in pairs.items()}


def groups_of(turns: Iterable[Row]) -> Mapping[str, list[Row]]:
    """Group -> its turns, in the order `START`, `AFTER_TOOLS`, tools, rounds."""
    turns = list(turns)
    later = [turn for turn in turns if turn["depth"]]
    groups = {START: [turn for turn in turns if not turn["depth"]], AFTER_TOOLS: later}
    groups |= {
        f"tool {tool}": [t for t in later if t["after_tool"] == tool]
        for tool in sorted({t["after_tool"] for t in later})
    }
    groups |= {f"round {n}": [t for t in later if t["depth"] == n] for n in sorted({t["depth"] for t in later})}
    return {name: group for name, group in groups.items() if group}
