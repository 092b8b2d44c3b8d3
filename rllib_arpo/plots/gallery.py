"""Draws all plots of a run, as PNG files and on one page."""

import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from rllib_arpo.plots.iterations import draw_accuracy_by_calls, draw_progress
from rllib_arpo.plots.run_data import MissingDataError, RunData
from rllib_arpo.plots.style import png
from rllib_arpo.plots.trees import draw_entropy, draw_forks, draw_rises
from rllib_arpo.show.pages import plots_page

PAGE = "plots.html"
#: Matplotlib is not safe in several threads.
_DRAWING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Plot:
    """A kind of plot.

    Attributes:
        name: the name of its file.
        title, caption: its texts on the page.
        draw: draws the figure, or raises MissingDataError.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[RunData], Figure]


PLOTS = (
    Plot("accuracy", "Accuracy, reward and tool calls",
         "Accuracy and reward are means per trajectory. An evaluation after an iteration has the weights of that "
         "iteration's update. A call that forks share counts once.",
         draw_progress),
    Plot("accuracy_by_tool_calls", "Accuracy against tool calls",
         "Tool calls that training has executed so far; a call that forks share counts once.",
         draw_accuracy_by_calls),
    Plot("entropy", "Entropy by token, before and after tool responses",
         "Trajectories from the prompt; each question counts once, with 95 % intervals over questions. Grey: the "
         "tokens that dH compares.",
         draw_entropy),
    Plot("entropy_rise", "dH by turn and tool",
         "The rise of the entropy after tool responses, at the nodes of trajectories from the prompt; each question "
         "counts once, with 95 % intervals over questions.",
         draw_rises),
    Plot("forks", "Forks by turn",
         "All trajectories of the recorded training questions. Right: the share of nodes that were forked, among the "
         "nodes decided while budget remained.",
         draw_forks),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plot of a run: either the PNG, or the sentence about the missing data."""

    plot: Plot
    image: bytes | None
    missing: str | None

    @property
    def source(self) -> str:
        """The image as a URL that needs no network."""
        return f"data:image/png;base64,{base64.b64encode(self.image or b'').decode()}"


def draw_all(run: RunData) -> list[Drawn]:
    return [_draw(plot, run) for plot in PLOTS]


def draw_first(run: RunData) -> list[Drawn]:
    """The plots above the list of questions, as far as the run has what they show."""
    drawn = [_draw(plot, run) for plot in PLOTS if plot.draw in (draw_progress, draw_forks)]
    return [one for one in drawn if one.image is not None]


def plot_files(title: str, drawn: Sequence[Drawn]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of a PNG for each plot that could be drawn, and of the page with all plots."""
    for one in drawn:
        if one.image is not None:
            yield f"{one.plot.name}.png", one.image
    yield PAGE, plots_page(title, drawn).encode()


def _draw(plot: Plot, run: RunData) -> Drawn:
    try:
        with _DRAWING:
            return Drawn(plot, png(plot.draw(run)), None)
    except MissingDataError as error:
        return Drawn(plot, None, str(error))
