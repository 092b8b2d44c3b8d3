"""The results of an evaluation: a table on the console for every task, arms side by side; all of it as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_arpo.core.intervals import LEVEL, METHOD, Estimate
from rllib_arpo.evaluation.metrics import PASS, ArmMetrics, differences
from rllib_arpo.evaluation.plan import TOOLS, Arm, EvaluationSettings
from rllib_arpo.files import write_json
from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.machine import origin

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


SUMMARY = "summary.json"
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


def plain_table(headers: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table whose first column names its rows; the others are numbers. Headers and names are shown as they are."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title and escape(title), title_justify="left", box=box.SIMPLE_HEAD, safe_box=True)
    for i, header in enumerate(headers):
        table.add_column(escape(header), justify="right" if i else "left")
    for name, *cells in rows:
        table.add_row(escape(name), *cells)
    return table


def _table(report: TaskReport) -> Table:
    title = f"{report.task}: {report.num_questions} questions, {report.num_samples} samples each"
    headers = ["", *report.columns, *(f"{label} minus {report.reference}" for label in report.differences)]
    rows = []
    for metric in _shown_metrics(report):
        name, decimals = metric_label(metric)
        cells = [cell(column.get(metric), decimals) for column in report.columns.values()]
        cells += [cell(column.get(metric), decimals, is_difference=True) for column in report.differences.values()]
        rows.append([name, *cells])
    return plain_table(headers, rows, title)


def _shown_metrics(report: TaskReport) -> list[str]:
    """pass@1, pass@k for the largest k, then the others that any arm has."""
    known = {name for column in report.columns.values() for name, e in column.items() if e.value is not None}
    passes = [f"{PASS}1"] + [f"{PASS}{report.num_samples}"] * (report.num_samples > 1)
    return [*passes, *(name for name in LABELS if name in known)]


def metric_label(metric: str) -> tuple[str, int]:
    """(how tables call a metric, decimals)."""
    return (f"pass@{metric.removeprefix(PASS)}", 3) if metric.startswith(PASS) else LABELS[metric]


def cell(estimate: Estimate | None, decimals: int, separator: str = " ", is_difference: bool = False) -> str:
    """Value and interval; the standard deviation between seeds, or of a difference a mark if it is not 0."""
    if estimate is None or estimate.value is None:
        return "-"
    form = f"{'+' if is_difference else ''}.{decimals}f"
    value, interval, low, high = f"{estimate.value:{form}}", "", estimate.low, estimate.high
    spread = f"{separator}sd {estimate.seed_std:{form}}" if estimate.seed_std and not is_difference else ""
    if low is not None and high is not None:
        interval = f" {ALL_EQUAL}" if low == high else f"{separator}\\[{low:{form}}, {high:{form}}]"
        if is_difference and low != high and not low <= 0 <= high:
            spread = f" {SIGNIFICANT}"
    return value + interval + spread


def task_reports(
    arms: Sequence[Arm], metrics: Mapping[str, ArmMetrics], settings: EvaluationSettings
) -> list[TaskReport]:
    """The metrics by task; arms are compared with the first model's arm with tools.

    Args:
        metrics: by the name of the arm.
    """
    reports = []
    for task in dict.fromkeys(arm.task for arm in arms):
        own = [arm for arm in arms if arm.task == task]
        reference = next(arm for arm in own if arm.style == TOOLS)
        reports.append(
            TaskReport(
                task=task,
                num_questions=len(reference.numbers),
                num_samples=settings.samples,
                columns={arm.label: metrics[arm.name].estimates() for arm in own},
                differences={
                    arm.label: differences(metrics[reference.name], metrics[arm.name])
                    for arm in own
                    if arm is not reference
                },
                reference=reference.label,
            )
        )
    return reports


def write_summary(
    path: Path,
    arms: Sequence[Arm],
    metrics: Mapping[str, ArmMetrics],
    reports: Sequence[TaskReport],
    settings: EvaluationSettings,
    arguments: Sequence[str],
    seconds: float,
    methods: Mapping[str, Any],
) -> None:
    """Writes the summary, in one step.

    Args:
        arguments: of the command line.
        seconds: the duration of this command, without the questions that an earlier one answered.
        methods: the table of methods, as JSON.
    """
    summary = {
        **origin("evaluate", arguments, seconds),
        "settings": dataclasses.asdict(settings),
        "interval": {"method": METHOD, "level": LEVEL},
        "arms": [_arm(arm, metrics[arm.name], report) for report in reports for arm in arms if arm.task == report.task],
        "differences": [
            {"task": report.task, "arm": label, "minus": report.reference, "metrics": _plain(estimates)}
            for report in reports
            for label, estimates in report.differences.items()
        ],
        "methods": methods,
    }
    write_json(path, summary)


def _arm(arm: Arm, metrics: ArmMetrics, report: TaskReport) -> dict[str, Any]:
    return {
        "label": arm.label,
        "model": arm.model.name,
        "model_fingerprint": arm.model.fingerprint,
        "style": arm.style,
        "task": arm.task,
        "questions": len(metrics.question_ids),
        "samples": report.num_samples,
        "commits": list(metrics.commits),
        "env_config": without_secrets(arm.own_config),
        "metrics": _plain(report.columns[arm.label]),
    }


def _plain(estimates: Mapping[str, Any]) -> dict[str, Any]:
    """Estimates as JSON: {"value", "low", "high", ...}."""
    return {name: dataclasses.asdict(estimate) for name, estimate in estimates.items()}
