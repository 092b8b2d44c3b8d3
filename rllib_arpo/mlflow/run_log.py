"""Makes MLflow runs agree with the folder of a trial, as Tune and ARPO leave it, and with that of an evaluation."""

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from mlflow.entities import Metric, Run
from mlflow.store.tracking import SEARCH_TRACES_DEFAULT_MAX_RESULTS
from mlflow.tracing.client import TracingClient
from ray.air.constants import TIMESTAMP, TRAINING_ITERATION
from ray.rllib.utils.metrics import EVALUATION_RESULTS
from ray.tune.result import EXPR_PARAM_FILE, EXPR_RESULT_FILE

from rllib_arpo.evaluation.report import SUMMARY
from rllib_arpo.mlflow.metric_groups import flat_metrics, flat_params, metric_name, mlflow_key
from rllib_arpo.mlflow.question_trace import FILE, WRITTEN, QuestionTrace
from rllib_arpo.mlflow.run_facts import (
    FINISHED,
    NOTE_TAG,
    RUN_FILE,
    RUNNING,
    RunFacts,
    read_facts,
    run_tags,
    write_facts,
)
from rllib_arpo.mlflow.store import Store, open_store
from rllib_arpo.plots.gallery import draw_all, plot_files
from rllib_arpo.plots.run_data import EVALUATION, read_results, read_run
from rllib_arpo.record.read import numbered_questions, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER, rank
from rllib_arpo.show.pages import tree_files, write_files

#: Artifact folders of a run.
PLOTS_ARTIFACT, TREES_ARTIFACT = "plots", "trees"
#: Questions whose trees are logged: of the last iteration, and before and after training.
NUM_QUESTIONS = 8
#: The tag that says what the run has: its last iteration and evaluation, and of which state the artifacts are.
LOGGED_TAG = "rllib_arpo.logged"
#: MLflow's experiment of evaluations.
EXPERIMENT = "evaluation"
#: The numeric fields of an estimate; their metric names are "gsm8k/pass_at_1", "gsm8k/pass_at_1/low", ...
_PARTS = {"value": "", "low": "/low", "high": "/high", "seed_std": "/seed_std"}


def log_folder(folder: Path, uri: str | None = None, experiment: str | None = None) -> Store:
    """Logs the folder of a trial or of an evaluation, as the functions below do; returns the store.

    Args:
        uri: of the store; None: as `open_store`.
        experiment: None: that of the trial's callback, or `EXPERIMENT`.
    """
    is_evaluation = (folder / SUMMARY).is_file()
    store = open_store(uri, experiment or (EXPERIMENT if is_evaluation else read_facts(folder).experiment))
    (log_evaluation if is_evaluation else log_run)(folder, store)
    return store


def log_run(folder: Path, store: Store) -> None:
    """Makes the run of a trial's folder in the store agree with the folder; a second call changes nothing.

    Raises:
        Exception: the first error of the store or of the folder; whatever could be logged is logged.
    """
    RunLog(folder, store).log()


class RunLog:
    """Logs one folder repeatedly, each time what the run does not have yet.

    Args:
        folder: of the trial: its record and `run.json`.
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
        for part in (self._log_traces, self._log_plots, self._log_trees):
            # A store without artifacts, or without traces, still gets the rest.
            try:
                part(run, facts)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _log_results(self, run: Run, facts: RunFacts) -> None:
        """Leaves out an iteration that a restored trial made again, since MLflow would keep both its results."""
        known = self._logged.get("iteration", 0)
        new = [one for one in read_results(self._results / EXPR_RESULT_FILE) if one[TRAINING_ITERATION] > known]
        if new:
            self._store.log_metrics(run, _metrics(new))
            evaluated = [one[TRAINING_ITERATION] for one in new if EVALUATION_RESULTS in one]
            before = self._logged.get("evaluated")
            self._remember(run, {"iteration": new[-1][TRAINING_ITERATION], "evaluated": max(evaluated, default=before)})

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

    def _log_plots(self, run: Run, facts: RunFacts) -> None:
        """While the trial runs, after evaluations only."""
        evaluated = max((path.name for path in self._written() if path.name.startswith(EVALUATION)), default=None)
        if facts.report and self._logged.get("iteration") and (facts.has_ended or self._logged.get("evaluated")):
            state = [self._logged.get("evaluated"), evaluated, *(self._end_state() if facts.has_ended else ())]
            self._log_files(run, PLOTS_ARTIFACT, state, self._plots)

    def _log_trees(self, run: Run, facts: RunFacts) -> None:
        if facts.report and facts.has_ended and self._logged.get("iteration"):
            draw = partial(tree_files, self._folder, NUM_QUESTIONS)
            self._log_files(run, TREES_ARTIFACT, self._end_state(), draw)

    def _written(self) -> dict[Path, int]:
        """The files of the record -> when each was written, ns since the epoch."""
        return {path: path.stat().st_mtime_ns for path in (self._folder / RECORD_FOLDER).glob("*.parquet")}

    def _end_state(self) -> list[int]:
        return [self._logged["iteration"], max(self._written().values(), default=0)]

    def _plots(self) -> Iterable[tuple[str, bytes]]:
        return plot_files(self._folder.name, draw_all(read_run(self._folder, self._results / EXPR_RESULT_FILE)))

    def _log_files(self, run: Run, artifact: str, state: Any, make: Callable[[], Iterable[tuple[str, bytes]]]) -> None:
        """Logs files, unless the run has those of this state."""
        if self._logged.get(artifact) == state:
            return
        with tempfile.TemporaryDirectory() as folder:
            if write_files(Path(folder), make()):
                self._store.client.log_artifacts(run.info.run_id, folder, artifact)
        self._remember(run, {artifact: state})

    def _remember(self, run: Run, logged: Mapping[str, Any]) -> None:
        self._logged |= logged
        self._store.client.set_tag(run.info.run_id, LOGGED_TAG, json.dumps(self._logged))


def log_traces(store: Store, run: Run, path: Path, limit: int) -> None:
    """Logs at most `limit` questions of a file of the record, each as a trace of the run.

    They are chosen by their names, so that every evaluation has the same ones. The store says which of them it has, so
    nothing is logged twice. If the file was written again, its traces are replaced.
    """
    run_id, written = run.info.run_id, path.stat().st_mtime_ns
    columns = pq.read_table(path, columns=["number", "question_id"]).to_pydict()
    questions = set(zip(columns["question_id"], columns["number"], strict=True))
    numbers = [number for name, number in sorted(questions, key=lambda each: (rank(each[0]), each[1]))[:limit]]
    logged = store.client.search_traces(
        locations=[store.experiment],
        filter_string=f"attribute.run_id = '{run_id}' AND metadata.{FILE} = '{path.name}'",
        include_spans=False,
        max_results=max(len(numbers), SEARCH_TRACES_DEFAULT_MAX_RESULTS),
    )
    if sum(trace.info.trace_metadata[WRITTEN] == str(written) for trace in logged) >= len(numbers):
        return
    if logged:
        store.client.delete_traces(store.experiment, trace_ids=[trace.info.trace_id for trace in logged])
    client = TracingClient(store.uri)
    (file,) = record_files(path)
    for question in numbered_questions(file, numbers):
        trace = QuestionTrace(question, run_id, path.name, written)
        # In this order: a trace that can be found has its spans.
        client.log_spans(store.experiment, list(trace.spans()))
        client.start_trace(trace.info(store.experiment))


def _metrics(results: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The times are Tune's, so that a result of which MLflow has a part stays one."""
    for result in results:
        time_ms = int(result.get(TIMESTAMP, 0)) * 1000
        for name, value in flat_metrics(result, metric_name).items():
            yield Metric(name, value, time_ms, result[TRAINING_ITERATION])


def log_evaluation(folder: Path, store: Store) -> None:
    """Makes the runs of an evaluation's folder agree with its summary; a second call changes nothing.

    The settings and the description of an arm are the params of its run, its estimates the metrics.

    Raises:
        Exception: of the store, or there is no summary in the folder.
    """
    path = folder / SUMMARY
    summary = json.loads(path.read_text(encoding="utf-8"))
    if not (folder / RUN_FILE).is_file():
        write_facts(folder, RunFacts(uuid.uuid4().hex, folder.name, run_tags(), FINISHED, EXPERIMENT))
    facts, written_ms = read_facts(folder), path.stat().st_mtime_ns // 1_000_000
    for label in dict.fromkeys(arm["label"] for arm in summary["arms"]):
        arms = [arm for arm in summary["arms"] if arm["label"] == label]
        model, style = arms[0]["model"], arms[0]["style"]
        note = f"Evaluation of `{model}` in the style `{style}`."
        run = store.run_of(f"{facts.id} {model} {style}", label, {**facts.tags, NOTE_TAG: note, "trial_name": label})
        store.log_params(run, flat_params(_arm_params(summary, arms)))
        new = {key: value for key, value in _arm_metrics(arms).items() if run.data.metrics.get(key) != value}
        store.log_metrics(run, [Metric(key, value, written_ms, 0) for key, value in new.items()])
        if run.info.status != FINISHED:
            store.client.set_terminated(run.info.run_id, FINISHED)


def _arm_params(summary: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = arms[0]
    shared = {key: first[key] for key in ("model", "model_fingerprint", "style", "samples")}
    tasks = {arm["task"]: {"questions": arm["questions"], "env_config": json.dumps(arm["env_config"])} for arm in arms}
    origin = {key: summary[key] for key in ("command", "commit", "interval")}
    return {**shared, **origin, "settings": summary["settings"], "tasks": tasks}


def _arm_metrics(arms: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        mlflow_key(f"{arm['task']}/{name}{suffix}"): estimate[part]
        for arm in arms
        for name, estimate in arm["metrics"].items()
        for part, suffix in _PARTS.items()
        if estimate[part] is not None
    }
