"""Draws all plots of a run."""

import base64
import threading
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from rllib_arpo.plots.iterations import draw_progress
from rllib_arpo.plots.run_data import MissingDataError, RunData
from rllib_arpo.plots.style import png
from rllib_arpo.plots.trees import draw_entropy, draw_forks

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


#: The first two that a run has data for are above the list of its questions.
PLOTS = (
    Plot("accuracy", "Accuracy, reward and tool calls",
         "Accuracy and reward are means per trajectory. An evaluation after an iteration has the weights of that "
         "iteration's update. A call that forks share counts once.",
         draw_progress),
    Plot("forks", "Forks by turn",
         "All trajectories of the recorded training questions. Right: the share of nodes that were forked, among the "
         "nodes decided while budget remained.",
         draw_forks),
    Plot("entropy", "Entropy by token, before and after tool responses",
         "Trajectories from the prompt; each question counts once, with 95 % intervals over questions. Grey: the "
         "tokens that dH compares.",
         draw_entropy),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plot of a run as a PNG."""

    plot: Plot
    image: bytes

    @property
    def source(self) -> str:
        """The image as a URL that needs no network."""
        return f"data:image/png;base64,{base64.b64encode(self.image).decode()}"


def draw_all(run: RunData, say: Callable[[str], object] = str) -> list[Drawn]:
    """The plots that the run has data for; `say` gets a sentence for each of the others."""
    drawn = []
    for plot in PLOTS:
        try:
            with _DRAWING:
                drawn.append(Drawn(plot, png(plot.draw(run))))
        except MissingDataError as error:
            say(f"{plot.title}: {error}")
    return drawn
