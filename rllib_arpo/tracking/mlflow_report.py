"""The plots and the tree pages of a run as artifacts of its MLflow run, drawn in the stores' threads."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ray.tune.result import EXPR_RESULT_FILE

from rllib_arpo.tracking.mlflow_records import MlflowStore

#: Artifact folders of a run.
PLOTS_ARTIFACT, TREES_ARTIFACT = "plots", "trees"
#: Questions whose trees are logged: of the last iteration, and before and after training.
NUM_QUESTIONS = 8
#: Seconds that the drawing waits for Tune and for the record's thread, which write the last result and the last
#: evaluation while the callback is told of them.
PATIENCE_S, LOOK_AGAIN_S = 10.0, 0.2


class RunReport:
    """Draws a trial's plots and trees, once for all stores.

    Args:
        results: the folder in which Tune keeps the trial's results while it runs.
        trial: the trial's folder, which has the record.
        warn: gets what went wrong with drawing or logging; it must not raise.
    """

    def __init__(self, results: Path, trial: Path, warn: Callable[[Exception], None]):
        self.warn = warn
        #: The last iteration for which a report was asked.
        self.newest = 0
        self._patience_s = PATIENCE_S
        self._results = results / EXPR_RESULT_FILE
        self._trial = trial
        self._lock = threading.Lock()
        self._drawn: dict[str, tuple[int, int | None, Mapping[str, bytes]]] = {}

    def files(self, iteration: int, with_trees: bool) -> dict[str, bytes]:
        """Path -> content, as of this iteration, or of a later one that was drawn already."""
        parts = {PLOTS_ARTIFACT: self._draw_plots} | ({TREES_ARTIFACT: self._draw_trees} if with_trees else {})
        files: dict[str, bytes] = {}
        for part, draw in parts.items():
            with self._lock:
                drawn, written, _ = self._drawn.get(part, (0, None, {}))
                # A trial that failed and went on may end at an iteration that it had reached before.
                if drawn < iteration or (with_trees and written != self._written()):
                    self._drawn[part] = iteration, self._written(), draw(iteration)
                files |= {f"{part}/{name}": content for name, content in self._drawn[part][2].items()}
        return files

    def _written(self) -> int | None:
        """When Tune last wrote a result, ns since the epoch."""
        return self._results.stat().st_mtime_ns if self._results.exists() else None

    # What these import is above this package, and imports matplotlib.
    def _draw_plots(self, iteration: int) -> dict[str, bytes]:
        """Of the run as soon as its files have this iteration, or after `PATIENCE_S` as they are."""
        from rllib_arpo.plots.gallery import draw_all, plot_files
        from rllib_arpo.plots.run_data import has_iteration, read_run

        deadline = time.monotonic() + self._patience_s
        while not (found := has_iteration(self._trial, self._results, iteration)) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_S)
        if not found:
            self._patience_s = 0.0  # Tune or the record does not write here.
        return plot_files(self._trial.name, draw_all(read_run(self._trial, self._results)))

    def _draw_trees(self, _iteration: int) -> dict[str, bytes]:
        from rllib_arpo.show.pages import tree_files

        return tree_files(self._trial, NUM_QUESTIONS)


@dataclass(frozen=True, slots=True)
class LogReport:
    """Logs the files of a report as artifacts.

    The run has its metrics without them, and nothing waits for them: a store is asked once, and whatever goes wrong, be
    it in the drawing, is a warning.
    """

    trial_id: str
    report: RunReport
    iteration: int
    with_trees: bool

    def apply(self, store: MlflowStore) -> None:
        if self.iteration < self.report.newest and not self.with_trees:
            return  # A later one waits behind it.
        try:
            from rllib_arpo.plots.gallery import write_files

            files = self.report.files(self.iteration, self.with_trees)
            with tempfile.TemporaryDirectory() as folder:
                write_files(Path(folder), files)
                store.client.log_artifacts(store.run_id(self.trial_id), folder)
        except Exception as error:
            self.report.warn(error)
