"""Prints and writes the tables of an evaluation: the arms of each task side by side."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rllib_arpo.core.intervals import (
    LEVEL,
    METHOD,
    Estimate,
    estimate_all,
    paired_differences,
)
from rllib_arpo.evaluation.metrics import PASS, Metrics
from rllib_arpo.evaluation.plan import Arm, EvaluationSettings
from rllib_arpo.files import write_json
from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.machine import origin

SUMMARY = "summary.json"
#: Metric -> (its name in the tables, the format of its values).
LABELS: dict[str, tuple[str, str]] = {
    "exact_match": ("EM", ".3f"),
    "f1": ("F1", ".3f"),
    "reward": ("reward", ".3f"),
    "format_valid": ("format valid", ".3f"),
    "tool_calls": ("tool calls", ".2f"),
    "tool_calls_failed": ("failed tool calls", ".2f"),
    "response_tokens": ("response tokens", ".1f"),
    "truncated": ("truncated", ".3f"),
    "masked": ("not finished", ".3f"),
}
#: Characters in a line if there is no terminal.
WIDTH = 240
#: Marks a value that all questions share: its interval has no width.
ALL_EQUAL = "="
#: Marks a difference whose interval does not contain 0.
SIGNIFICANT = "*"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The contents of one task's table.

    Attributes:
        num_samples: samples of each question.
        columns: label of a model -> metric -> estimate.
        differences: label of a model -> metric -> estimate of this model minus `reference`.
        reference: the label of the first model.
    """

    task: str
    num_questions: int
    num_samples: int
    columns: Mapping[str, Mapping[str, Estimate]]
    differences: Mapping[str, Mapping[str, Estimate]]
    reference: str


def task_reports(arms: Sequence[Arm], metrics: Mapping[str, Metrics], settings: EvaluationSettings) -> list[TaskReport]:
    """The reports, one for each task.

    Args:
        metrics: name of an arm -> its metrics.
    """
    reports = []
    for task in dict.fromkeys(arm.task for arm in arms):
        first, *others = own = [arm for arm in arms if arm.task == task]
        reports.append(
            TaskReport(
                task=task,
                num_questions=len(first.numbers),
                num_samples=settings.samples,
                columns={arm.model.label: estimate_all(metrics[arm.name]) for arm in own},
                differences={
                    arm.model.label: paired_differences(metrics[first.name], metrics[arm.name]) for arm in others
                },
                reference=first.model.label,
            )
        )
    return reports


def print_report(reports: Sequence[TaskReport]) -> None:
    """Prints the tables of tasks, and a legend."""
    console = plain_console()
    for report in reports:
        console.print(_task_table(report))
    for line in _legend(reports):
        print(line)


def plain_console() -> Console:
    """A console. Without a terminal it prints plain text, at most `WIDTH` characters a line."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH, color_system=None)


def plain_table(headers: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table with names in the first column and numbers in the others; rich's markup in names stays as it is."""
    table = Table(title=title and escape(title), title_justify="left", box=box.SIMPLE_HEAD, safe_box=True)
    for i, header in enumerate(headers):
        table.add_column(escape(header), justify="right" if i else "left")
    for name, *cells in rows:
        table.add_row(escape(name), *cells)
    return table


def cell(estimate: Estimate | None, form: str) -> str:
    """Value and interval; "-" if there is no value."""
    if estimate is None or estimate.value is None:
        return "-"
    value, low, high = f"{estimate.value:{form}}", estimate.low, estimate.high
    if low is None or high is None:
        return value
    return f"{value} {ALL_EQUAL}" if low == high else f"{value} \\[{low:{form}}, {high:{form}}]"


def _difference(estimate: Estimate | None, form: str) -> str:
    return cell(estimate, f"+{form}") + (f" {SIGNIFICANT}" if _is_significant(estimate) else "")


def _is_significant(difference: Estimate | None) -> bool:
    if difference is None or difference.low is None or difference.high is None:
        return False
    return difference.low < difference.high and not difference.low <= 0 <= difference.high


def _task_table(report: TaskReport) -> Table:
    """pass@1, pass@k for the largest k, then every other metric that an arm has."""
    known = {name for column in report.columns.values() for name, e in column.items() if e.value is not None}
    passes = dict.fromkeys([f"{PASS}1", f"{PASS}{report.num_samples}"])
    rows = []
    for metric in [*passes, *(name for name in LABELS if name in known)]:
        name, form = metric_label(metric)
        means = [cell(column.get(metric), form) for column in report.columns.values()]
        rows.append([name, *means, *(_difference(each.get(metric), form) for each in report.differences.values())])
    headers = ["", *report.columns, *(f"{label} minus {report.reference}" for label in report.differences)]
    title = f"{report.task}: {report.num_questions} questions, {report.num_samples} samples each"
    return plain_table(headers, rows, title)


def metric_label(metric: str) -> tuple[str, str]:
    """(the metric's name in tables, the format of its values)."""
    return (f"pass@{metric.removeprefix(PASS)}", ".3f") if metric.startswith(PASS) else LABELS[metric]


def _legend(reports: Sequence[TaskReport]) -> list[str]:
    """The lines of the legend, for the numbers that occur."""
    columns = [column for report in reports for column in report.columns.values()]
    estimates = [estimate for column in columns for estimate in column.values()]
    lines = [f"[low, high]: {LEVEL:.0%} interval, {METHOD} (so over questions and seeds)."]
    if any(e.low is not None and e.low == e.high for e in estimates):
        lines.append(f"{ALL_EQUAL}: all questions have this value, so the interval says nothing about its error.")
    if any(e.num_questions == 1 for e in estimates):
        lines.append("A single question has no interval.")
    if any(report.differences for report in reports):
        lines.append(f"{SIGNIFICANT}: the interval of the paired difference does not contain 0.")
    if any((masked := column.get("masked")) and masked.value for column in columns):
        lines.append(
            "Warning: some trajectories did not finish (deadline, broken tool, engine) and count as wrong. The same"
            " command repeats those with a broken tool or engine."
        )
    return lines


def write_summary(
    path: Path,
    arms: Sequence[Arm],
    reports: Sequence[TaskReport],
    settings: EvaluationSettings,
    arguments: Sequence[str],
    seconds: float,
) -> None:
    """Writes the summary in one step.

    Args:
        arguments: the command line's arguments.
        seconds: the duration of this command, without questions that an earlier call answered.
    """
    summary = {
        **origin("evaluate", arguments, seconds),
        "settings": dataclasses.asdict(settings),
        "interval": {"method": METHOD, "level": LEVEL},
        "arms": [_arm(arm, report) for report in reports for arm in arms if arm.task == report.task],
        "differences": [
            {"task": report.task, "arm": label, "minus": report.reference, "metrics": _plain(estimates)}
            for report in reports
            for label, estimates in report.differences.items()
        ],
    }
    write_json(path, summary)


def _arm(arm: Arm, report: TaskReport) -> dict[str, Any]:
    return {
        "label": arm.model.label,
        "model": arm.model.name,
        "model_fingerprint": arm.model.fingerprint,
        "task": arm.task,
        "questions": report.num_questions,
        "samples": report.num_samples,
        "env_config": without_secrets(arm.own_config),
        "metrics": _plain(report.columns[arm.model.label]),
    }


def _plain(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    """Estimates as JSON: {"value", "low", "high", ...}."""
    return {name: dataclasses.asdict(estimate) for name, estimate in estimates.items()}
