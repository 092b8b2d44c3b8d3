"""The pictures of docs/metrics.md: the curves of runs with a mistake beside those of a run without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from release.evidence.documents import RESULTS
from release.evidence.study_rows import read_table
from release.symptoms.cases import read_rows
from rllib_arpo.learner.guards import GUARD_LIMITS

#: Values of a metric, by iteration.
Curve = Mapping[int, float]
LEARNER, ROLLOUT = "learners/default_policy", "env_runners"
SEARCH = f"{ROLLOUT}/tools/search"
NUM_QUESTIONS = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One metric of several runs.

    Attributes:
        lines: label -> curve.
        guard: the metric's limit, a horizontal line.
        log: whether the axis is logarithmic.
    """

    title: str
    lines: Mapping[str, Curve]
    guard: float | None = None
    log: bool = False


def of_case(case: str, metric: str) -> Curve:
    return {row["iteration"]: row["value"] for row in _of_cases() if (row["case"], row["metric"]) == (case, metric)}


def of_study(arm: str, seed: int, column: str) -> Curve:
    """Of a training run of the study of learning rates."""
    own = [row for row in _of_sweep() if (row["arm"], row["seed"]) == (arm, seed) and row["iteration"] > 0]
    return {row["iteration"]: row[column] for row in own if row[column] is not None}


@cache
def _of_cases() -> list[dict[str, Any]]:
    return read_rows()


@cache
def _of_sweep() -> list[dict[str, Any]]:
    return read_table(RESULTS / "trails-sweep-small.parquet")


def no_signal() -> list[Panel]:
    """GRPO with twice the best learning rate, beside the best one."""
    runs = {"lr 8e-4": "one-step-8e-4", "lr 4e-4": "one-step-4e-4"}
    columns = {
        "groups_without_signal": f"groups_without_signal, of {NUM_QUESTIONS}",
        "distinct_answers": "different answers of 16 trajectories",
        "sampled_accuracy": "accuracy",
    }
    return [
        Panel(title, {label: of_study(arm, 101, column) for label, arm in runs.items()})
        for column, title in columns.items()
    ]


def entropy_collapse() -> list[Panel]:
    """A temperature that is too low; and the other way round, a learning rate that is too high."""
    runs = {"temperature 0.2, lr 6e-4": "cold", "temperature 1, lr 2e-4": "healthy"}
    panels = [
        _panel("entropy/after_tool, nats a token", runs, f"{ROLLOUT}/entropy/after_tool"),
        _panel("pass_at_k", runs, f"{ROLLOUT}/pass_at_k"),
        _panel(f"groups_without_signal, of {NUM_QUESTIONS}", runs, f"{LEARNER}/groups_without_signal"),
    ]
    columns = ("after_tool_entropy", "pass_at_k", "groups_without_signal")
    return [
        Panel(panel.title, {**panel.lines, "temperature 1, lr 8e-4": of_study("one-step-8e-4", 100, column)})
        for panel, column in zip(panels, columns, strict=True)
    ]


def gap() -> list[Panel]:
    runs = {"bfloat16, fp8 cache": "fp8", "bfloat16": "bfloat16", "float32": "healthy"}
    name = "engine_logprob_gap"
    return [
        _panel(f"{name}, nats", runs, f"{LEARNER}/{name}", guard=name, log=True),
        _panel("format_valid", runs, f"{ROLLOUT}/format_valid"),
        _panel("accuracy", runs, f"{ROLLOUT}/accuracy"),
    ]


def tool_failures() -> list[Panel]:
    runs = {"limit of 20 ms": "timeouts", "limit of 30 s": "healthy"}
    return [
        Panel(
            "tools/search/timeouts, share of the calls", {label: timeout_share(case) for label, case in runs.items()}
        ),
        _panel("pass_at_k", runs, f"{ROLLOUT}/pass_at_k"),
        _panel("accuracy", runs, f"{ROLLOUT}/accuracy"),
    ]


def timeout_share(case: str) -> Curve:
    timeouts = of_case(case, f"{SEARCH}/timeouts")
    return {iteration: timeouts[iteration] / calls for iteration, calls in of_case(case, f"{SEARCH}/calls").items()}


def _panel(title: str, runs: Mapping[str, str], metric: str, guard: str | None = None, log: bool = False) -> Panel:
    limit = GUARD_LIMITS[guard] if guard else None
    return Panel(title, {label: of_case(case, metric) for label, case in runs.items()}, limit, log)


#: File name -> its panels.
PICTURES: dict[str, Callable[[], Sequence[Panel]]] = {
    "no-signal": no_signal,
    "entropy-collapse": entropy_collapse,
    "gap": gap,
    "tool-failures": tool_failures,
}


def draw(name: str, folder: Path) -> Path:
    """Draws a picture into `folder`; returns its path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = PICTURES[name]()
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.7 * len(panels), 3.0), layout="constrained")
    for axis, panel in zip(axes, panels, strict=True):
        for label, curve in panel.lines.items():
            axis.plot(list(curve), list(curve.values()), marker=".", label=label)
        if panel.guard is not None:
            axis.axhline(panel.guard, color="grey", linestyle="--", linewidth=1, label="guard")
        axis.set_yscale("log" if panel.log else "linear")
        axis.set_title(panel.title, fontsize=9)
        axis.set_xlabel("update", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
