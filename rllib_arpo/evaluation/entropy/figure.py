"""The figure of a task: entropy by token position, dH at the nodes, and the forks of each rule."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rllib_arpo.evaluation.entropy.measures import AFTER_TOOLS, START, Curve
from rllib_arpo.evaluation.entropy.summary import EntropySettings, TaskEntropy
from rllib_arpo.files import replace_file

SIZE_INCHES, DPI = (11.0, 7.0), 100
#: Bins of the histogram of dH.
BINS = 40
#: A curve ends at the position that fewer turns reach, since means of few turns jump.
MIN_TURNS = 5


def write_figure(path: Path, found: TaskEntropy, settings: EntropySettings, title: str) -> None:
    """Draws the figure of a task as a PNG. The file is replaced in one step."""
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    (by_tool, by_round), (histogram, rules) = figure.subplots(2, 2)
    figure.suptitle(title)
    draw_curves(by_tool, _chosen(found.curves, "tool "), settings.window, "Entropy by tool")
    draw_curves(by_round, _chosen(found.curves, "round "), settings.window, "Entropy by round")
    top = max(axes.get_ylim()[1] for axes in (by_tool, by_round))
    for axes in (by_tool, by_round):
        axes.set_ylim(0, top)
    _draw_deltas(histogram, found, settings)
    _draw_rules(rules, found)
    with replace_file(path) as partial:
        figure.savefig(partial, format="png")


def _chosen(curves: Mapping[str, Curve], kind: str) -> dict[str, Curve]:
    return {name: curve for name, curve in curves.items() if name == START or name.startswith(kind)}


def draw_curves(axes: Axes, curves: Mapping[str, Curve], window: int, title: str) -> None:
    """Draws the curves of groups of turns (`curves.entropy_curves`); the first `window` tokens are grey."""
    axes.axvspan(0.5, window + 0.5, color="0.93", zorder=0)
    for name, curve in curves.items():
        kept = np.flatnonzero(curve.num_turns >= min(MIN_TURNS, curve.num_turns[0]))
        place, mean, half = kept + 1, curve.mean[kept], np.nan_to_num(curve.half_width[kept])
        label = f"{_label(name)} ({curve.num_turns[0]} turns)"
        (line,) = axes.plot(place, mean, label=label, color="black" if name == START else None, linewidth=1.4)
        axes.fill_between(place, mean - half, mean + half, color=line.get_color(), alpha=0.18, linewidth=0)
    axes.set(xlabel="token of the turn", ylabel="entropy (nats)", title=title, ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small")


def _label(group: str) -> str:
    """A group of turns in words."""
    kind, _, which = group.partition(" ")
    return {"tool": f"after {which}", "round": f"after tool response {which}"}.get(kind, group)


def _draw_deltas(axes: Axes, found: TaskEntropy, settings: EntropySettings) -> None:
    axes.set(xlabel=f"dH ({settings.normalization}, k = {settings.window})", ylabel="nodes")
    if not len(found.deltas):
        axes.set_title("No tool response was followed by a turn")
        return
    tools = sorted({node.tool for node in found.nodes})
    groups = [found.deltas[[node.tool == tool for node in found.nodes]] for tool in tools]
    axes.hist(groups, bins=BINS, stacked=True, label=[f"after {tool}" for tool in tools])
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.legend(frameon=False, fontsize="small")
    share = found.rises[AFTER_TOOLS].share_positive.value
    axes.set_title(f"Rise after tool responses: dH > 0 at {share:.0%} of {len(found.deltas)} nodes")


def _draw_rules(axes: Axes, found: TaskEntropy) -> None:
    axes.set(xlabel="expected children per node, without a budget", title="What each rule would fork")
    children = {rule: forks["children_per_node"] for rule, forks in found.rules.items()}
    known = {rule: (e.value, e.low, e.high) for rule, e in children.items() if e.value is not None}
    names, values = [rule.name.replace(", ", "\n", 1) for rule in known], [value for value, _, _ in known.values()]
    axes.barh(names, values, color="0.6", xerr=_errors(list(known.values())))
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize="small")


def _errors(estimates: Sequence[tuple[float, float | None, float | None]]) -> np.ndarray:
    """[2, rules]: how far the intervals (value, low, high) reach below and above; 0 if there is no interval."""
    below = [0.0 if low is None else value - low for value, low, _ in estimates]
    above = [0.0 if high is None else high - value for value, _, high in estimates]
    return np.array([below, above])
