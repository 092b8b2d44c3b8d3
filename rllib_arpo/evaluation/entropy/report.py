"""The tables on the console: how the entropy rises after tool responses, and the forks of each rule."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rllib_arpo.core.intervals import LEVEL, Estimate
from rllib_arpo.evaluation.entropy.summary import EntropySettings, TaskEntropy
from rllib_arpo.evaluation.report import plain_console


def print_report(found: Sequence[TaskEntropy], settings: EntropySettings, console: Console | None = None) -> None:
    """Prints the tables of all tasks; without a terminal, as plain text."""
    console = plain_console(console or Console())
    for task in found:
        console.print(f"{task.task}: {task.num_questions} questions, {task.num_samples} samples", highlight=False)
        unfinished = f"{task.num_masked} samples were not finished (deadline, broken tool, error, engine)."
        console.print(unfinished, highlight=False)
        if not task.nodes:
            console.print("No tool response was followed by a turn, so that nothing could rise.", highlight=False)
            continue
        console.print(_rises(task, settings))
        console.print(_rules(task))
    console.print(
        f"Means are over questions, each by the mean of its nodes; [low, high]: {LEVEL:.0%} interval of "
        "Student's t over questions. Rules: the budget of a question is not counted.",
        highlight=False,
        markup=False,
    )


def _rises(task: TaskEntropy, settings: EntropySettings) -> Table:
    table = _table("", "nodes", "rise (nats per token)", f"dH ({settings.normalization})", "dH > 0")
    for name, rise in task.rises.items():
        cells = [_cell(rise.rise_nats_per_token, "+.3f"), _cell(rise.delta, "+.3f"), _cell(rise.share_positive, ".3f")]
        table.add_row(name, str(rise.nodes), *cells)
    return table


def _rules(task: TaskEntropy) -> Table:
    table = _table("rule", "children per node", "nodes forked")
    for rule, forks in task.rules.items():
        table.add_row(rule.name, _cell(forks.children_per_node, ".3f"), _cell(forks.share_of_nodes_forked, ".3f"))
    return table


def _table(*columns: str) -> Table:
    from rich import box

    table = Table(box=box.SIMPLE_HEAD, safe_box=True)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _cell(estimate: Estimate, form: str) -> str:
    value = f"{estimate.value:{form}}"
    if estimate.low is None or estimate.low == estimate.high:
        return value
    return f"{value} \\[{estimate.low:{form}}, {estimate.high:{form}}]"
