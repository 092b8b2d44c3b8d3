"""The engine-learner gap: how far the engine's log-probs of the sampled tokens are from the learner's."""

from __future__ import annotations

from matplotlib.figure import Figure
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import LEARNER_RESULTS

from rllib_arpo.learner.guards import GUARD_LIMITS
from rllib_arpo.plots.run_data import MissingDataError, RunData
from rllib_arpo.plots.style import count_axis, legend, panels

GAP = "engine_logprob_gap"


def draw_gap(run: RunData) -> Figure:
    """Draws the gap in nats a token, and the limit of its guard if it is on.

    Raises:
        MissingDataError: no result has the gap.
    """
    iterations, gap = run.series(LEARNER_RESULTS, DEFAULT_MODULE_ID, GAP)
    if not gap:
        raise MissingDataError(f"No result of the run has the metric {GAP}.")
    guards = run.results[-1].get("config", {}).get("guards") or {}
    limit = (GUARD_LIMITS | guards)[GAP]
    figure, (panel,) = panels(1)
    panel.plot(iterations, gap, marker=".", label="mean of |learner − engine|")
    if limit is not None:
        panel.axhline(limit, color="tab:red", linestyle="--", linewidth=1.2, label="limit of the guard")
    if min(gap) > 0:
        panel.set_yscale("log")
    panel.set_ylabel("log-probs of sampled tokens (nats)")
    count_axis(panel, "iteration")
    legend(panel)
    return figure
