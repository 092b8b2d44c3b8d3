"""Makes an MLflow run agree with the folder of a trial, as Tune and ARPO leave it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Run
from ray.air.constants import TIMESTAMP, TRAINING_ITERATION
from ray.rllib.utils.metrics import EVALUATION_RESULTS
from ray.tune.result import EXPR_PARAM_FILE, EXPR_RESULT_FILE

from rllib_arpo.mlflow.flat import flat_metrics, flat_params
from rllib_arpo.mlflow.metric_groups import metric_name
from rllib_arpo.mlflow.run_facts import RUNNING, RunFacts, read_facts
from rllib_arpo.mlflow.store import Store
from rllib_arpo.mlflow.traces import log_evaluations, log_traces
from rllib_arpo.plots.gallery import draw_all, plot_files, write_files
from rllib_arpo.plots.run_data import EVALUATION, read_run
from rllib_arpo.record.recorder import RECORD_FOLDER
from rllib_arpo.show.pages import tree_files

#: Artifact folders of a run.
PLOTS_ARTIFACT, TREES_ARTIFACT, CHECKPOINT_ARTIFACT = "plots", "trees", "checkpoint"
#: Questions whose trees are logged: of the last iteration, and before and after training.
NUM_QUESTIONS = 8
#: The tag that says what the run has: bytes and iterations of `result.json`, and of which state the artifacts are.
LOGGED_TAG = "rllib_arpo.logged"


def log_run(folder: Path, store: Store) -> None:
    """Makes the run of a trial's folder in the store agree with the folder; a second call changes nothing.

    Raises:
        Exception: the first error of the store or of the folder; whatever could be logged is logged.
    """
    RunLog(folder, store).log()


class RunLog:
    """Logs one folder repeatedly; it remembers what it has logged, so that a further call reads only what is new.

    Args:
        folder: of the trial: its record, `run.json` and its checkpoints.
        results: where Tune keeps `result.json` and `params.json` while the trial runs; default: `folder`.
    """

    def __init__(self, folder: Path, store: Store, results: Path | None = None):
        self._folder = folder
        self._results = results or folder
        self._store = store
        self._logged: dict[str, Any] = {}
        self._traced: dict[Path, int] = {}

    def log(self) -> None:
        """Logs what is new. Raises as `log_run` does."""
        facts = read_facts(self._folder)
        run = self._store.run_of(facts.id, facts.name, facts.tags)
        self._logged = json.loads(run.data.tags.get(LOGGED_TAG, "{}"))
        params = self._results / EXPR_PARAM_FILE
        if params.is_file():
            self._store.log_params(run, flat_params(json.loads(params.read_text(encoding="utf-8"))))
        self._log_results(run, facts)
        self._log_status(run, facts.status)
        errors = []
        for part in (self._log_traces, self._log_plots, self._log_trees, self._log_checkpoint):
            # A store without artifacts, or without traces, still gets the rest.
            try:
                part(run, facts)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _log_results(self, run: Run, facts: RunFacts) -> None:
        path = self._results / EXPR_RESULT_FILE
        if not path.is_file():
            return
        begin = self._logged.get("bytes", 0)
        # Otherwise the trial began anew, or went on at a checkpoint and made its last results again.
        read = {"bytes": begin if _ends_a_row(path, begin) else 0, "iteration": self._logged.get("iteration", 0)}
        self._store.log_metrics(run, _metrics(path, read, facts.all_metrics))
        if read["bytes"] != begin:
            self._remember(run, read)

    def _log_status(self, run: Run, status: str) -> None:
        if run.info.status == status:
            return
        if status == RUNNING:
            self._store.client.update_run(run.info.run_id, status=status)
        else:
            self._store.client.set_terminated(run.info.run_id, status)

    def _log_traces(self, run: Run, facts: RunFacts) -> None:
        """Logs the questions of the record's files that are new, or were written again by a restored trial."""
        if not facts.traces:
            return
        written = self._written()
        new = sorted((path for path in written if self._traced.get(path) != written[path]), key=written.__getitem__)
        for path in new:
            log_traces(self._store, run, path, facts.traces)
            self._traced[path] = written[path]
        evaluations = {path.name: written[path] for path in written if path.name.startswith(EVALUATION)}
        if evaluations:
            state = [len(evaluations), max(evaluations.values())]
            self._once(
                run, "evaluations", state, partial(log_evaluations, self._store, run, self._record, facts.traces)
            )

    def _log_plots(self, run: Run, facts: RunFacts) -> None:
        """While the trial runs, after evaluations only."""
        evaluated = max((path.name for path in self._written() if path.name.startswith(EVALUATION)), default=None)
        state = [self._logged.get("evaluated"), evaluated, *(self._end_state() if facts.has_ended else ())]
        if facts.report and self._logged.get("bytes") and (facts.has_ended or self._logged.get("evaluated")):
            self._once(run, PLOTS_ARTIFACT, state, lambda: self._log_files(run, PLOTS_ARTIFACT, self._plots()))

    def _log_trees(self, run: Run, facts: RunFacts) -> None:
        if facts.report and facts.has_ended and self._logged.get("bytes"):
            draw = partial(tree_files, self._folder, NUM_QUESTIONS)
            state = self._end_state()
            self._once(run, TREES_ARTIFACT, state, lambda: self._log_files(run, TREES_ARTIFACT, draw()))

    def _log_checkpoint(self, run: Run, facts: RunFacts) -> None:
        newest = max(self._folder.glob("checkpoint_*"), default=None)
        if facts.checkpoint and facts.has_ended and newest is not None:
            log = partial(self._store.client.log_artifacts, run.info.run_id, str(newest), CHECKPOINT_ARTIFACT)
            self._once(run, CHECKPOINT_ARTIFACT, newest.name, log)

    @property
    def _record(self) -> Path:
        return self._folder / RECORD_FOLDER

    def _written(self) -> dict[Path, int]:
        """The files of the record -> when each was written, ns since the epoch."""
        return {path: path.stat().st_mtime_ns for path in self._record.glob("*.parquet")}

    def _end_state(self) -> list[int]:
        return [self._logged["bytes"], max(self._written().values(), default=0)]

    def _plots(self) -> Mapping[str, bytes]:
        return plot_files(self._folder.name, draw_all(read_run(self._folder, self._results / EXPR_RESULT_FILE)))

    def _log_files(self, run: Run, artifact: str, files: Mapping[str, bytes]) -> None:
        if not files:
            return
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder), files)
            self._store.client.log_artifacts(run.info.run_id, folder, artifact)

    def _once(self, run: Run, part: str, state: Any, log: Callable[[], Any]) -> None:
        """Logs a part, unless the run has it of this state."""
        if self._logged.get(part) != state:
            log()
            self._remember(run, {part: state})

    def _remember(self, run: Run, logged: Mapping[str, Any]) -> None:
        self._logged |= logged
        self._store.client.set_tag(run.info.run_id, LOGGED_TAG, json.dumps(self._logged))


def _ends_a_row(path: Path, size: int) -> bool:
    """Whether a row of the file ends after `size` bytes."""
    with path.open("rb") as file:
        file.seek(max(0, size - 1))
        return size == 0 or file.read(1) == b"\n"


def _metrics(path: Path, read: dict[str, int], all_metrics: bool) -> Iterator[Metric]:
    """The metrics of the results after the first `read["bytes"]` bytes of the file.

    A line that is still being written is left for the next call. An iteration that a restored trial made again is left
    out, since MLflow would keep both its results. While the results are read, `read` grows: "bytes", "iteration", and
    "evaluated", the iteration of the last evaluation. The times are Tune's, so that a result of which MLflow has a part
    stays one.

    Raises:
        ValueError: a row is not JSON.
    """
    with path.open("rb") as file:
        file.seek(read["bytes"])
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                result = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, after byte {read['bytes']}: the row is not JSON ({error.msg}).") from None
            read["bytes"] += len(line)
            step, time_ms = result[TRAINING_ITERATION], int(result.get(TIMESTAMP, 0)) * 1000
            if step <= read["iteration"]:
                continue
            for name, value in flat_metrics(result, partial(metric_name, all_metrics=all_metrics)).items():
                yield Metric(name, value, time_ms, step)
            read["iteration"] = step
            if EVALUATION_RESULTS in result:
                read["evaluated"] = step
