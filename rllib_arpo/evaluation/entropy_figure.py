"""Draws the figure of a task: entropy by token position, dH at the nodes, and the forks of each rule."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rllib_arpo.evaluation.entropy import AFTER_TOOLS, START, Curve, EntropySettings, TaskEntropy
from rllib_arpo.files import replace_file

SIZE_INCHES, DPI = (11.0, 7.0), 100
#: Bins of the histogram of dH.
BINS = 40
#: A curve ends where fewer turns are left, since means of few turns jump.
MIN_TURNS = 5


def write_figure(path: Path, found: TaskEntropy, settings: EntropySettings, title: str) -> None:
    """Draws the figure of a task as a PNG, which replaces the file in one step."""
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    (by_tool, by_round), (histogram, rules) = figure.subplots(2, 2)
    figure.suptitle(title)
    for axes, kind in ((by_tool, "tool"), (by_round, "round")):
        chosen = {name: curve for name, curve in found.curves.items() if name.startswith((START, f"{kind} "))}
        draw_curves(axes, chosen, settings.window, f"Entropy by {kind}")
    top = max(axes.get_ylim()[1] for axes in (by_tool, by_round))
    for axes in (by_tool, by_round):
        axes.set_ylim(0, top)
    _draw_deltas(histogram, found, settings)
    _draw_rules(rules, found)
    with replace_file(path) as partial:
        figure.savefig(partial, format="png")


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
    axes.set(xlabel="token of the turn", ylabel="entropy (nats)", title=title, ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small")


def _draw_deltas(axes: Axes, found: TaskEntropy, settings: EntropySettings) -> None:
    axes.set(xlabel=f"dH ({settings.normalization}, k = {settings.window})", ylabel="nodes")
    if found.nodes.empty:
        axes.set_title("No turn followed a tool response")
        return
    groups = {f"after {tool or 'a call'}": own["delta"] for tool, own in found.nodes.groupby("tool")}
    axes.hist(list(groups.values()), bins=BINS, stacked=True, label=list(groups))
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.legend(frameon=False, fontsize="small")
    share = found.rises[AFTER_TOOLS]["share_positive"].value
    axes.set_title(f"Rise after tool responses: dH > 0 at {share:.0%} of {len(found.nodes)} nodes")


def _draw_rules(axes: Axes, found: TaskEntropy) -> None:
    axes.set(xlabel="expected children per node, without a budget", title="What each rule would fork")
    for rule, forks in found.rules.items():
        mean = forks["children_per_node"]
        if mean.value is not None:
            half = None if mean.low is None else mean.value - mean.low
            axes.barh(rule.name.replace(", ", "\n", 1), mean.value, color="0.6", xerr=half)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize="small")
