"""Makes the tables of a study in Markdown, and its learning curves, from its rows alone.

`a ± s (d [low, high])` is mean and standard deviation over seeds, and the paired difference to the baseline over the
seeds that both have, with its 95 % t interval if there are at least five. A figure that some seeds lack says how many
have it. If the rows name several start models, intervals and p come from the means over the seeds of each, and cover
what another start model would change. Otherwise they only cover what a seed changes: the order of training questions,
and sampling. Intervals are not corrected for the number of arms; the p of comparisons are, with Holm's method for all
comparisons of a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from release.evidence import study_figures
from release.evidence.study_figures import (
    CALLS,
    CALLS_OF_UPDATES,
    CPU_OF_UPDATES,
    MEAN_OVER_UPDATES,
    NUM_POINTS,
    UPDATES,
    Comparison,
    Figures,
    Run,
    accuracies_at,
    compare,
    figures,
    finished_runs,
    paired,
    reach,
    start_model_means,
)
from release.evidence.study_rows import Row
from rllib_arpo.core.intervals import estimate_all

ACCURACIES = ("accuracy at equal updates", MEAN_OVER_UPDATES, "mean over calls", "accuracy at equal calls")
#: Figure of decisive steps -> its column.
DECISIVE = {"decisive_auc": "AUC of dH", "decisive_fork_share": "forks at decisive steps"}
#: The tested figures: the primary one, and the secondary one.
TESTED = ("accuracy at equal calls", MEAN_OVER_UPDATES)
#: Figure -> decimals.
TOTALS = dict.fromkeys(study_figures.COSTS, 0)
FORKS = {
    "decisive_auc": 2, "decisive_fork_share": 2, "fork_rate": 3, "forks_per_question": 2, "fork_depth_mean": 2,
    "mixed_sign_share": 3,
}  # fmt: skip
ENTROPIES = {
    "initial_entropy": 3, "after_tool_entropy": 3, "delta": 3, "delta_p10": 3, "delta_p50": 3, "delta_p90": 3,
    "policy_entropy": 3,
}  # fmt: skip
#: Fewer values get no interval, which would be as wide as their range or wider.
MIN_VALUES = 5
#: Column -> the axis of its curves.
AXES = {UPDATES: "updates", CALLS: "executed tool calls"}


def all_tables(
    rows: Sequence[Row], baseline: str, accuracies: Sequence[float], calls: int, shown: Sequence[str] | None = None
) -> str:
    """All tables of the finished runs, the names of the others, and the origin of the rows.

    Args:
        baseline: the other arms are compared with this one, if it is there.
        accuracies: for each accuracy there is a table of the costs to reach it.
        calls: runs are compared up to this number of calls.
        shown: the arms that the tables show, with the baseline; None: all. All arms count for Holm's correction and for
            the last update up to which accuracies are averaged.
    """
    runs, unfinished = finished_runs(rows)
    if not runs:
        return f"No run is finished; begun: {'; '.join(unfinished) or 'none'}.\n"
    found = figures(runs, calls)
    arms = sorted(
        (arm for arm in found if shown is None or arm in shown or arm == baseline),
        key=lambda arm: (arm != baseline, arm),
    )
    leanest = min(run.calls for run in runs if run.arm in arms)
    too_few = f"; the leanest run has {leanest:,}" if leanest < calls else ""
    by_arm = {arm: {run.seed: run for run in runs if run.arm == arm} for arm in arms}
    parts = [
        f"### Accuracy on held-out questions (equal calls: {calls:,}{too_few})",
        accuracy_table(found, arms, baseline),
        *_start_models(runs, found, arms),
        *_comparisons(runs, found, arms, baseline),
        *(
            part
            for accuracy in accuracies
            for part in (f"### Costs to an accuracy of {accuracy:g}", reach_table(by_arm, baseline, accuracy))
        ),
        "### Forks, and tokens that are pulled both ways",
        means_table(found, arms, FORKS),
        "### Entropies (nats) and dH",
        means_table(found, arms, ENTROPIES),
        "### Costs of a run",
        means_table(found, arms, TOTALS),
        _origin(runs, unfinished),
    ]
    return "\n\n".join(parts) + "\n"


def accuracy_table(found: Figures, arms: Sequence[str], baseline: str) -> str:
    """The table of accuracies; `arms` is the order of its lines.

    It has columns for decisive steps if the task has some, the costs of the updates if some runs have more updates, and
    seconds of one processor if the rows have them.
    """
    shown = [name for name in DECISIVE if any(len(_values(found[arm], name)) for arm in arms)]
    goes_on = any(run[CALLS_OF_UPDATES] < run["calls"] for arm in arms for run in found[arm].values())
    of_updates, of_runs = (
        [name for name in names if all(len(_values(found[arm], name)) for arm in arms)]
        for names in ((CALLS_OF_UPDATES, CPU_OF_UPDATES) if goes_on else (), ("calls", "CPU seconds"))
    )
    columns = [*ACCURACIES[:2], *of_updates, *ACCURACIES[2:], *of_runs]
    header = ["arm", "seeds", *(DECISIVE[name] for name in shown), *columns]
    lines = []
    for arm in arms:
        cells = [arm, str(len(found[arm]))]
        cells += [_plain_mean(found[arm], name) for name in shown]
        cells += [
            _compared(found, arm, baseline, name) if name in ACCURACIES else f"{_values(found[arm], name).mean():,.0f}"
            for name in columns
        ]
        lines.append(cells)
    return _markdown(header, lines)


def _start_models(runs: Sequence[Run], found: Figures, arms: Sequence[str]) -> Iterator[str]:
    """The heading and the table of the start models and of the arms' levels from each; nothing if they are unknown."""
    starts: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        starts.setdefault(run.start_model or "not recorded", []).append(run)
    if list(starts) == ["not recorded"]:
        return
    lines = []
    for start, own in starts.items():
        cells = [start, ", ".join(sorted({run.rows[0]["machine"] or "" for run in own}))]
        cells += [", ".join(dict.fromkeys(str(run.seed) for run in own))]
        cells += [f"{np.mean([run.rows[0]['accuracy'] for run in own]):.3f}"]
        for arm in arms:
            values = [found[arm][run.seed][MEAN_OVER_UPDATES] for run in own if run.arm == arm]
            cells.append(f"{np.mean(values):.3f}" if values else "")
        lines.append(cells)
    yield "### Start models, and each arm's mean over updates from them"
    yield _markdown(["start model", "machine", "seeds", "accuracy at the start", *arms], lines)


def _comparisons(runs: Sequence[Run], found: Figures, arms: Sequence[str], baseline: str) -> Iterator[str]:
    """Headings and tables that compare each arm with the baseline, and with random forks at its own fork rate."""
    families = {
        f"### Each arm against {baseline}, p corrected by Holm": sorted(
            (arm, baseline) for arm in found if arm != baseline
        ),
        "### Each arm against random forks at its rate, p corrected by Holm": sorted(
            {(run.rows[0]["fork_rate_of"], run.arm) for run in runs if run.rows[0]["fork_rate_of"] in found}
        ),
    }
    for heading, pairs in families.items():
        if any(other in found for _, other in pairs):
            yield heading
            yield comparison_table(found, pairs, arms)


def comparison_table(found: Figures, pairs: Sequence[tuple[str, str]], shown: Sequence[str]) -> str:
    """The differences in both figures, with p and with p corrected for all `pairs`, if there are `MIN_VALUES`.

    Args:
        shown: the arms that get a line.
    """
    header = ["arm", "compared with", "seeds", *(part for figure in TESTED for part in (figure, "p", "p corrected"))]
    by_figure = [compare(found, pairs, figure, MIN_VALUES) for figure in TESTED]
    lines = []
    for of_pair in zip(*by_figure, strict=True):
        if of_pair[0].arm not in shown:
            continue
        # One number, or a number for each figure if their seeds differ.
        seeds = " and ".join(dict.fromkeys(str(one.num_seeds) for one in of_pair if one.num_seeds)) or "0"
        lines.append([of_pair[0].arm, of_pair[0].other, seeds, *(cell for one in of_pair for cell in _tested(one))])
    return _markdown(header, lines)


def _tested(one: Comparison) -> list[str]:
    if not len(one.differences):
        return ["too few calls", "", ""]
    return [_with_interval(one.differences), *("" if p is None else _small(p) for p in (one.p, one.corrected))]


def _small(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def reach_table(by_arm: Mapping[str, Mapping[int, Run]], baseline: str, accuracy: float) -> str:
    """The calls to reach an accuracy, and each cost as a share of the baseline's.

    If a run never reached the accuracy, costs count up to the horizon (`Reach.horizon`).
    """
    header = ["arm", "reached", "median calls", "horizon", "mean calls up to it"]
    header += [f"{cost} / {baseline}" for cost in study_figures.COSTS]
    base, lines = by_arm.get(baseline, {}), []
    for arm, runs in by_arm.items():
        found = reach(runs, base, accuracy)
        median = "never" if found.median is None else f"{found.median:,.0f}"
        horizon = f"{found.horizon:,.0f}" if np.isfinite(found.horizon) else ""
        cells = [arm, f"{found.reached} of {found.runs}", median, horizon, f"{found.restricted_mean:,.0f}"]
        same = arm == baseline
        lines.append([*cells, *("" if same else _ratio(runs, base, accuracy, c) for c in study_figures.COSTS.values())])
    return _markdown(header, lines)


def _ratio(runs: Mapping[int, Run], base: Mapping[int, Run], accuracy: float, column: str) -> str:
    if any(row[column] is None for run in (*runs.values(), *base.values()) for row in run.rows):
        return ""
    found = reach(runs, base, accuracy, column)
    if found.ratio is None:
        return ""
    value, *ends = found.ratio
    return _interval(value, *(ends if found.pairs >= MIN_VALUES else (None, None)), 2)


def means_table(found: Figures, arms: Sequence[str], decimals: Mapping[str, int]) -> str:
    """Means over seeds of means over iterations, with their 95 % intervals, for the metrics that some arm has."""
    shown = {name: places for name, places in decimals.items() if any(len(_values(found[arm], name)) for arm in arms)}
    lines = []
    for arm in arms:
        cells = []
        for name, places in shown.items():
            values = _start_model_means(found[arm], name)
            estimate = estimate_all({name: values})[name]
            bounds = (estimate.low, estimate.high) if len(values) >= MIN_VALUES else (None, None)
            cells.append("" if not len(values) else _interval(estimate.value, *bounds, places))
        lines.append([arm, *cells])
    return _markdown(["arm", *shown], lines)


def _origin(runs: Sequence[Run], unfinished: Sequence[str]) -> str:
    lines = []
    for column in ("package_version", "commit", "tree", "machine"):
        values = {row[column] or "not recorded" for run in runs for row in run.rows}
        lines.append(f"- {column.replace('_', ' ')}: {', '.join(sorted(values))}")
    begun: dict[int, set[float]] = {}
    for run in runs:
        begun.setdefault(run.seed, set()).add(run.rows[0]["accuracy"])
    if unlike := [str(seed) for seed, accuracies in begun.items() if len(accuracies) > 1]:
        lines.append(
            f"- seeds whose arms begin with other accuracies: {', '.join(unlike)} (the evaluation samples, or the task "
            "has changed)"
        )
    return "\n".join([*lines, f"- left out, not finished: {'; '.join(unfinished) or 'none'}"])


def _values(by_seed: Mapping[int, Mapping[str, Any]], name: str) -> np.ndarray:
    """[seeds], for the seeds that have the figure."""
    values = np.array([run[name] for run in by_seed.values()], dtype=float)
    return values[~np.isnan(values)]


def _start_model_means(by_seed: Mapping[int, Mapping[str, Any]], name: str) -> np.ndarray:
    """`_values`, or their means over the seeds of each start model."""
    starts = [run.get(study_figures.START_MODEL) for run in by_seed.values() if not np.isnan(run[name])]
    return start_model_means(_values(by_seed, name), starts)


def _plain_mean(by_seed: Mapping[int, Mapping[str, Any]], name: str) -> str:
    values = _values(by_seed, name)
    return f"{values.mean():.2f}" if len(values) else ""


def _compared(found: Figures, arm: str, baseline: str, name: str) -> str:
    """A figure of an arm, its difference to the baseline's, and the number of its seeds if some lack it."""
    values = _values(found[arm], name)
    if not len(values):
        return "too few calls"
    spread = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
    left = f", {len(values)} of {len(found[arm])} seeds" if len(values) < len(found[arm]) else ""
    return f"{values.mean():.3f}{spread}{_difference(found, arm, baseline, name)}{left}"


def _difference(found: Figures, arm: str, baseline: str, name: str) -> str:
    """The difference with its interval, or "" unless both arms have the figure for two seeds."""
    num_seeds, differences = paired(found, arm, baseline, name)
    return "" if arm == baseline or num_seeds < 2 else f" ({_with_interval(differences)})"


def _with_interval(differences: np.ndarray) -> str:
    """The mean of [differences], with its interval."""
    estimate = estimate_all({"": differences})[""]
    if len(differences) < MIN_VALUES:
        return _signed(estimate.value)
    return f"{_signed(estimate.value)} [{_signed(estimate.low)}, {_signed(estimate.high)}]"


def _interval(value: float, low: float | None, high: float | None, places: int) -> str:
    shown = f"{value:,.{places}f}" + (
        "" if low is None or high is None else f" [{low:,.{places}f}, {high:,.{places}f}]"
    )
    return shown.replace("-", "−")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(cells)} |" for cells in (header, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(header), *rows[1:]])


def curves(runs: Sequence[Run], column: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Arm -> (values of `column` [p], accuracies by `start_model_means`), up to the end of its shortest run."""
    found = {}
    for arm in sorted({run.arm for run in runs}):
        own = [run for run in runs if run.arm == arm]
        at = np.linspace(0, min(run.column(column)[-1] for run in own), NUM_POINTS)
        found[arm] = (
            at,
            start_model_means(
                np.array([accuracies_at(run, column, at) for run in own]), [run.start_model for run in own]
            ),
        )
    return found


def draw_curves(runs: Sequence[Run], path: Path) -> None:
    """Draws each arm's mean accuracy over seeds against updates and against executed tool calls.

    Bands are the tables' 95 % intervals; an arm with fewer than `MIN_VALUES` values has no band.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(AXES), figsize=(11, 4), sharey=True, layout="constrained")
    for panel, (column, label) in zip(panels, AXES.items(), strict=True):
        for arm, (at, values) in curves(runs, column).items():
            (line,) = panel.plot(at, values.mean(0), label=f"{arm} (n = {len(values)})")
            if len(values) >= MIN_VALUES:
                means = estimate_all({str(point): column for point, column in enumerate(values.T)}).values()
                low, high = [mean.low for mean in means], [mean.high for mean in means]
                panel.fill_between(at, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy on held-out questions")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
