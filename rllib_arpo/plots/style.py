"""The common style of all plots: size, grid, colours, PNG format."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

DPI = 110
#: A panel's size in inches.
WIDTH, HEIGHT = 4.6, 3.4
#: The same thing has the same colour in all plots.
COLORS = {"training": "tab:blue", "evaluation": "tab:orange"}


def panels(count: int, sharex: bool = False) -> tuple[Figure, Sequence[Axes]]:
    """A figure with panels side by side. A single panel is wider."""
    width = WIDTH * count if count > 1 else 1.5 * WIDTH
    figure = Figure(figsize=(width, HEIGHT), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, sharex=sharex)[0]
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def count_axis(panel: Axes, label: str) -> None:
    """Gives the x axis integer ticks, for iterations or turns."""
    panel.set_xlabel(label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend(panel: Axes) -> None:
    panel.legend(frameon=False, fontsize="small")


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
