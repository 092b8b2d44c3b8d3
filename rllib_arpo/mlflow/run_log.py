"""Makes MLflow runs agree with the folder of a trial, as Tune and ARPO write it, or of an evaluation."""

import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from mlflow.entities import Metric, Run
from mlflow.store.tracking import SEARCH_TRACES_DEFAULT_MAX_RESULTS
from mlflow.tracing.client import TracingClient
from ray.air.constants import TIMESTAMP, TRAINING_ITERATION
from ray.tune.result import EXPR_PARAM_FILE, EXPR_RESULT_FILE

from rllib_arpo.evaluation.report import SUMMARY
from rllib_arpo.mlflow.metric_groups import flat_metrics, flat_params, metric_name, mlflow_key
from rllib_arpo.mlflow.question_trace import FILE, WRITTEN, QuestionTrace
from rllib_arpo.mlflow.run_facts import (
    FAILED,
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
from rllib_arpo.plots.gallery import draw_all
from rllib_arpo.plots.run_data import read_results, read_run
from rllib_arpo.record.read import numbered_questions, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER, rank
from rllib_arpo.show.pages import tree_files, write_files

#: How many questions' trees are logged: of the last iteration, and of evaluations before and after training.
NUM_QUESTIONS = 8
#: The tag that records what the run has: its last iteration, and the state of its artifacts.
LOGGED_TAG = "rllib_arpo.logged"
#: MLflow's experiment for evaluations.
EXPERIMENT = "evaluation"
#: The numeric fields of an estimate; their metric names are "gsm8k/pass_at_1", "gsm8k/pass_at_1/low", ...
_PARTS = {"value": "", "low": "/low", "high": "/high", "seed_std": "/seed_std"}


def log_folder(folder: Path, uri: str | None = None, experiment: str | None = None) -> Store:
    """Makes runs in the store agree with the folder of a trial or an evaluation; returns the store.

    Args:
        uri: the store; None: `open_store` chooses.
        experiment: None: the experiment of the trial's callback, or `EXPERIMENT`.
    """
    is_evaluation = (folder / SUMMARY).is_file()
    store = open_store(uri, experiment or (EXPERIMENT if is_evaluation else read_facts(folder).experiment))
    if is_evaluation:
        log_evaluation(folder, store)
    else:
        RunLog(folder, store).log()
    return store


class RunLog:
    """Logs a folder again and again, each time only what the run does not have yet.

    Args:
        folder: the trial's folder with its record and `run.json`.
        results: the folder where Tune keeps `result.json` and `params.json` during the run; default: `folder`.
    """

    def __init__(self, folder: Path, store: Store, results: Path | None = None):
        self._folder = folder
        self._results = results or folder
        self._store = store
        self._logged: dict[str, Any] = {}
        self._traced: dict[Path, int] = {}

    def log(self) -> None:
        """Logs what is new; a second call changes nothing.

        Raises:
            Exception: the first error of the store or the folder, after everything else has been logged.
        """
        facts = read_facts(self._folder)
        run = self._store.run_of(facts.id, facts.name, facts.tags)
        self._logged = json.loads(run.data.tags.get(LOGGED_TAG, "{}"))
        params = self._results / EXPR_PARAM_FILE
        if params.is_file():
            self._store.log_params(run, flat_params(json.loads(params.read_text(encoding="utf-8"))))
        self._log_results(run)
        self._log_status(run, facts.status)
        errors = []
        for part in (self._log_traces, self._log_artifacts):
            # A store without artifacts, or without traces, still gets the rest.
            try:
                part(run, facts)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _log_results(self, run: Run) -> None:
        """Logs new results. It skips an iteration that a restored trial repeated, since MLflow would keep both."""
        known = self._logged.get("iteration", 0)
        new = [one for one in read_results(self._results / EXPR_RESULT_FILE) if one[TRAINING_ITERATION] > known]
        if new:
            self._store.log_metrics(run, _metrics(new))
            self._remember(run, {"iteration": new[-1][TRAINING_ITERATION]})

    def _log_status(self, run: Run, status: str) -> None:
        if run.info.status == status:
            return
        if status == RUNNING:
            self._store.client.update_run(run.info.run_id, status=status)
        else:
            self._store.client.set_terminated(run.info.run_id, status)

    def _log_traces(self, run: Run, facts: RunFacts) -> None:
        """Logs traces from the record's files that are new, or that a restored trial wrote again."""
        if not facts.traces:
            return
        written = self._written()
        new = sorted((path for path in written if self._traced.get(path) != written[path]), key=written.__getitem__)
        for path in new:
            log_traces(self._store, run, path, facts.traces)
            self._traced[path] = written[path]

    def _log_artifacts(self, run: Run, facts: RunFacts) -> None:
        """Logs plots and trees once the trial has ended by itself, unless the run already has them.

        They take seconds, which an interrupted run does not have.
        """
        state = [self._logged.get("iteration"), max(self._written().values(), default=0)]
        ended = facts.status in (FINISHED, FAILED)
        if not facts.report or not ended or not state[0] or self._logged.get("artifacts") == state:
            return
        drawn = draw_all(read_run(self._folder, self._results / EXPR_RESULT_FILE))
        plots = [(f"plots/{one.plot.name}.png", one.image) for one in drawn]
        trees = ((f"trees/{name}", page) for name, page in tree_files(self._folder, NUM_QUESTIONS))
        with tempfile.TemporaryDirectory() as folder:
            if write_files(Path(folder), (*plots, *trees)):
                self._store.client.log_artifacts(run.info.run_id, folder)
        self._remember(run, {"artifacts": state})

    def _written(self) -> dict[Path, int]:
        """File of the record -> when it was written, ns since the epoch."""
        return {path: path.stat().st_mtime_ns for path in (self._folder / RECORD_FOLDER).glob("*.parquet")}

    def _remember(self, run: Run, logged: Mapping[str, Any]) -> None:
        self._logged |= logged
        self._store.client.set_tag(run.info.run_id, LOGGED_TAG, json.dumps(self._logged))


def log_traces(store: Store, run: Run, path: Path, limit: int) -> None:
    """Logs at most `limit` questions of a record's file, each as a trace of the run.

    Their names decide which, so all evaluations have the same ones. The store knows which traces it has, so nothing is
    logged twice. If the file was written again, new traces replace the old ones.
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
        # In this order, so a trace that can be found has its spans.
        client.log_spans(store.experiment, list(trace.spans()))
        client.start_trace(trace.info(store.experiment))


def _metrics(results: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The metrics of results, with Tune's times: a result that is logged in two attempts keeps one time."""
    for result in results:
        time_ms = int(result.get(TIMESTAMP, 0)) * 1000
        for name, value in flat_metrics(result, metric_name).items():
            yield Metric(name, value, time_ms, result[TRAINING_ITERATION])


def log_evaluation(folder: Path, store: Store) -> None:
    """Makes the runs of an evaluation agree with the summary in its folder; a second call changes nothing.

    The settings and the description of an arm become the params of its run, its estimates the metrics.

    Raises:
        Exception: the store fails, or the folder has no summary.
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
