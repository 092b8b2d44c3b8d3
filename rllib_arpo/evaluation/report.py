"""The table on the console: one for every task, a line for every metric, arms of the evaluation side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rllib_arpo.core.intervals import LEVEL, METHOD, Estimate
from rllib_arpo.evaluation.metrics import PASS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Metric -> (how the table calls it, decimals).
LABELS: dict[str, tuple[str, int]] = {
    "exact_match": ("EM", 3),
    "f1": ("F1", 3),
    "reward": ("reward", 3),
    "format_valid": ("format valid", 3),
    "tool_calls": ("tool calls", 2),
    "tool_calls_failed": ("failed tool calls", 2),
    "response_tokens": ("response tokens", 1),
    "truncated": ("truncated", 3),
    "masked": ("not finished", 3),
}
#: Columns of the table if there is no terminal.
WIDTH = 240
#: Marks a value that all questions have, so that its interval has no width.
ALL_EQUAL = "="
#: Marks a difference whose interval does not contain 0.
SIGNIFICANT = "*"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The contents of one task's table.

    Attributes:
        task, num_questions, num_samples: the questions asked.
        columns: label of an arm -> metric -> estimate.
        differences: label of an arm -> metric -> estimate of that arm minus `reference`.
        reference: the label of the arm that the others are compared with.
    """

    task: str
    num_questions: int
    num_samples: int
    columns: Mapping[str, Mapping[str, Estimate]]
    differences: Mapping[str, Mapping[str, Estimate]]
    reference: str


def print_report(reports: Sequence[TaskReport], console: Console | None = None) -> None:
    """Prints the tables and a legend; without a terminal, as plain text of at most `WIDTH` columns."""
    from rich.console import Console

    console = plain_console(console or Console())
    for report in reports:
        console.print(_table(report))
    for line in legend(reports):
        console.print(line, highlight=False, markup=False)


def plain_console(console: Console) -> Console:
    """The console, or without a terminal one for plain text of `WIDTH` columns."""
    from rich.console import Console

    return console if console.is_terminal else Console(file=console.file, width=WIDTH, color_system=None)


def legend(reports: Sequence[TaskReport]) -> list[str]:
    """The legend, for the kinds of numbers that occur."""
    shown = [e for report in reports for column in report.columns.values() for e in column.values()]
    lines = [f"[low, high]: {LEVEL:.0%} interval, {METHOD} (so over questions and seeds)."]
    if equal := [e.num_questions for e in shown if e.low is not None and e.low == e.high]:
        lines.append(
            f"{ALL_EQUAL}: all questions have this value, so that the interval says nothing about its error"
            f" (none of {min(equal)} questions is compatible with a share of up to {largest_share(min(equal)):.3f})."
        )
    if any(e.num_questions == 1 for e in shown):
        lines.append("No interval: it takes two questions.")
    if any(e.seed_std for e in shown):
        lines.append("sd: standard deviation between seeds (the first sample of every question, the second, ...).")
    if any(report.differences for report in reports):
        lines.append(f"{SIGNIFICANT}: the interval of the paired difference does not contain 0.")
    unfinished = [e for report in reports for c in report.columns.values() if (e := c.get("masked")) and e.value]
    if unfinished:
        lines.append(
            "Warning: some trajectories were not finished (deadline, broken tool, engine). They count as wrong; the"
            " same command asks those with a broken tool or engine again."
        )
    return lines


def largest_share(num_questions: int) -> float:
    """The largest share of questions that a draw of this size misses entirely with probability 1 - `LEVEL`."""
    return 1 - (1 - LEVEL) ** (1 / num_questions)


def _table(report: TaskReport) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    title = f"{report.task}: {report.num_questions} questions, {report.num_samples} samples each"
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, safe_box=True)
    table.add_column("")
    for label in report.columns:
        table.add_column(escape(label), justify="right")
    for label in report.differences:
        table.add_column(escape(f"{label} minus {report.reference}"), justify="right")
    for metric in _shown_metrics(report):
        name, decimals = metric_label(metric)
        cells = [cell(column.get(metric), decimals) for column in report.columns.values()]
        cells += [difference_cell(column.get(metric), decimals) for column in report.differences.values()]
        table.add_row(name, *cells)
    return table


def _shown_metrics(report: TaskReport) -> list[str]:
    """pass@1, pass@k for the largest k, then the others that any arm has."""
    known = {name for column in report.columns.values() for name, e in column.items() if e.value is not None}
    passes = [f"{PASS}1"] + [f"{PASS}{report.num_samples}"] * (report.num_samples > 1)
    return [*passes, *(name for name in LABELS if name in known)]


def metric_label(metric: str) -> tuple[str, int]:
    """(how tables call a metric, decimals)."""
    return (f"pass@{metric.removeprefix(PASS)}", 3) if metric.startswith(PASS) else LABELS[metric]


def cell(estimate: Estimate | None, decimals: int, separator: str = " ") -> str:
    """Value, interval and standard deviation between seeds."""
    if estimate is None or estimate.value is None:
        return "-"
    spread = f"{separator}sd {estimate.seed_std:.{decimals}f}" if estimate.seed_std else ""
    value = f"{estimate.value:.{decimals}f}"
    if estimate.low is None or estimate.high is None:
        return value + spread
    if estimate.low == estimate.high:
        return f"{value} {ALL_EQUAL}{spread}"
    return f"{value}{separator}\\[{estimate.low:.{decimals}f}, {estimate.high:.{decimals}f}]{spread}"


def difference_cell(estimate: Estimate | None, decimals: int, separator: str = " ") -> str:
    """Difference and interval, with a mark if the interval does not contain 0."""
    if estimate is None or estimate.value is None:
        return "-"
    value = f"{estimate.value:+.{decimals}f}"
    if estimate.low is None or estimate.high is None:
        return value
    if estimate.low == estimate.high:
        return f"{value} {ALL_EQUAL}"
    mark = "" if estimate.low <= 0 <= estimate.high else f" {SIGNIFICANT}"
    return f"{value}{separator}\\[{estimate.low:+.{decimals}f}, {estimate.high:+.{decimals}f}]{mark}"
