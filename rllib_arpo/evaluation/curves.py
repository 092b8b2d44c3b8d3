"""Computes and draws the mean entropy by token of groups of turns (the paper's first figure).

The tables have a row for each turn, with the columns of the record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rllib_arpo.core.intervals import half_width

#: Groups of turns: after the prompt, and after any tool response. Further groups are "tool NAME" and "round 1".
START, AFTER_TOOLS = "start", "after tools"
#: A panel's dots per inch, and its size in inches.
DPI, WIDTH, HEIGHT = 110, 4.6, 3.4
#: A drawn curve ends where fewer turns are left, since means of few turns jump.
MIN_TURNS = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean entropy by position in a turn, up to the end of the longest turn.

    Attributes:
        mean: [P] nats.
        half_width: [P] nats, half of the 95 % t interval over questions; NaN with fewer than two questions.
        num_questions, num_turns: [P], how many questions and turns are long enough.
    """

    mean: np.ndarray
    half_width: np.ndarray
    num_questions: np.ndarray
    num_turns: np.ndarray


def entropy_curve(turns: pd.DataFrame, num_positions: int) -> Curve:
    """The curve of turns over their first `num_positions` tokens.

    `mean_p = 1/|Q_p| sum_q m_qp`, where m_qp is the mean of H_p over the turns of question q that have more than p
    tokens, and Q_p are the questions with such a turn; `half_width_p = t s_p / sqrt(|Q_p|)`, s_p the standard deviation
    of m_qp over Q_p (ddof = 1).
    """
    cut = [entropies[:num_positions] for entropies in turns["entropies"]]
    padded = np.full((len(cut), max(map(len, cut), default=0)), np.nan)
    for values, entropies in zip(padded, cut, strict=True):
        values[: len(entropies)] = entropies
    by_question = pd.DataFrame(padded).groupby(turns["question_id"].to_numpy()).mean()
    count = by_question.count().to_numpy()
    return Curve(
        mean=by_question.mean().to_numpy(),
        half_width=half_width(by_question.std().to_numpy(), count),
        num_questions=count,
        num_turns=np.isfinite(padded).sum(axis=0),
    )


def groups_of(turns: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Group -> its turns, in the order `START`, `AFTER_TOOLS`, tools, rounds, without empty groups."""
    later = turns[turns["depth"] > 0]
    groups = {START: turns[turns["depth"] == 0], AFTER_TOOLS: later}
    groups |= {f"tool {tool}": own for tool, own in later.groupby("after_tool")}
    groups |= {f"round {depth:.0f}": own for depth, own in later.groupby("depth")}
    return {name: own for name, own in groups.items() if len(own)}


def draw_curves(axes: Axes, curves: Mapping[str, Curve], window: int, title: str) -> None:
    """Draws the curves of groups of turns, with the first `window` tokens in grey."""
    axes.axvspan(0.5, window + 0.5, color="0.93", zorder=0)
    for name, curve in curves.items():
        kept = np.flatnonzero(curve.num_turns >= min(MIN_TURNS, curve.num_turns[0]))
        x, mean, half = kept + 1, curve.mean[kept], np.nan_to_num(curve.half_width[kept])
        kind, _, which = name.partition(" ")
        words = {"tool": f"after {which or 'a call'}", "round": f"after tool response {which}"}.get(kind, name)
        label, color = f"{words} ({curve.num_turns[0]} turns)", "black" if name == START else None
        (line,) = axes.plot(x, mean, label=label, color=color, linewidth=1.4)
        axes.fill_between(x, mean - half, mean + half, color=line.get_color(), alpha=0.18, linewidth=0)
    axes.set(ylabel="entropy (nats)", title=title, ylim=(0, None))
    axes.set_xlabel("token of the turn")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes)


def panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure with panels side by side."""
    figure = Figure(figsize=(WIDTH * count, HEIGHT), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(panel: Axes) -> None:
    panel.legend(frameon=False, fontsize="small")
