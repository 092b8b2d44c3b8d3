"""The table of methods by tasks on the console, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_arpo.envs.question import QA
from rllib_arpo.envs.tasks.specs import SPECS
from rllib_arpo.evaluation.bootstrap import Estimate, Kind
from rllib_arpo.evaluation.method_table import MethodTable
from rllib_arpo.evaluation.metrics import PASS
from rllib_arpo.evaluation.plan import TOOLS, Arm
from rllib_arpo.evaluation.report import ALL_EQUAL, SIGNIFICANT, cell, difference_cell, metric_label, plain_console
from rllib_arpo.evaluation.suites import score_of

if TYPE_CHECKING:
    from rich.console import Console

JUDGE = "judge"
AVERAGE = "average"


def metric_names(arms: Sequence[Arm]) -> dict[str, str]:
    """Task -> how the table calls its score; "judge" if a judge says which answers are right."""
    tools = {arm.task: arm for arm in arms if arm.style == TOOLS}
    return {task: JUDGE if _is_judged(arm) else metric_label(score_of(task))[0] for task, arm in tools.items()}


def print_method_table(table: MethodTable, notes: Sequence[str], console: Console | None = None) -> None:
    """Prints the table and its legend."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = plain_console(console or Console())
    shown = Table(box=box.SIMPLE_HEAD, safe_box=True, title=_title(table), title_justify="left")
    shown.add_column("")
    reference = table.rows[0].label
    headers = [f"{escape(task)}\n{metric}" for task, metric in table.metrics.items()] + [AVERAGE]
    for header in headers + [f"{AVERAGE} minus\n{escape(reference)}"] * (len(table.rows) > 1):
        shown.add_column(header, justify="right")
    for row in table.rows:
        cells = [cell(row.cells.get(task), 3, "\n") for task in table.metrics] + [cell(row.average, 3, "\n")]
        if len(table.rows) > 1:
            cells.append(difference_cell(row.difference, 3, "\n"))
        count = f"\n({len(row.models)} models)" if len(row.models) > 1 else ""
        shown.add_row(f"{escape(row.label)}{count}", *cells)
    console.print(shown)
    for line in [*_legend(table), *notes]:
        console.print(line, highlight=False, markup=False)


def as_json(table: MethodTable, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "tasks": [{"task": task, "metric": score_of(task), "name": name} for task, name in table.metrics.items()],
        "rows": [
            {
                "label": row.label,
                "models": list(row.models),
                "scores": {task: dataclasses.asdict(estimate) for task, estimate in row.cells.items()},
                "average": row.average and dataclasses.asdict(row.average),
                "minus_first": row.difference and dataclasses.asdict(row.difference),
            }
            for row in table.rows
        ],
        "notes": list(notes),
    }


def _is_judged(arm: Arm) -> bool:
    return arm.first_env.config.qa_metric == JUDGE and _is_knowledge(arm.task) and score_of(arm.task) == f"{PASS}1"


def _is_knowledge(task: str) -> bool:
    return task in SPECS and SPECS[task].ability == QA


def _title(table: MethodTable) -> str:
    return f"{len(table.rows)} method{'s' * (len(table.rows) > 1)}, {len(table.metrics)} tasks"


def _legend(table: MethodTable) -> list[str]:
    shown: list[Estimate] = [e for row in table.rows for e in (*row.cells.values(), row.average) if e is not None]
    lines = [f"{AVERAGE}: the unweighted mean of the tasks' scores; its interval resamples questions within each task."]
    if any(len(row.models) > 1 for row in table.rows):
        lines.append("(n models): their mean; sd is the standard deviation between them, which no interval covers.")
    words = [task for task, name in table.metrics.items() if name == "pass@1" and _is_knowledge(task)]
    if words:
        lines.append(f"pass@1 of {', '.join(words)}: the answer has the words of a right one; no judge is set.")
    if any(e.kind is Kind.ALL_EQUAL for e in shown):
        lines.append(f"{ALL_EQUAL}: all questions have this value, so that there is no interval.")
    if any(row.difference is not None for row in table.rows):
        lines.append(f"{SIGNIFICANT}: the interval of the difference, question by question, does not contain 0.")
    return lines
