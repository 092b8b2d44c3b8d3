"""Logs the questions of a trial's record: as traces, and those of evaluations as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from mlflow.entities import Run
from mlflow.store.tracking import SEARCH_TRACES_DEFAULT_MAX_RESULTS
from mlflow.tracing.client import TracingClient
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from rllib_arpo.mlflow.question_trace import FILE, WRITTEN, QuestionTrace, trajectory_name
from rllib_arpo.mlflow.store import Store
from rllib_arpo.record.read import Question, numbered_questions, record_files
from rllib_arpo.record.recorder import rank

#: The artifact with the table of evaluated questions, and its columns.
EVALUATIONS_ARTIFACT = "evaluations.json"
EVALUATIONS_COLUMNS = (
    "iteration", "question_id", "trajectory", "prompt", "transcript", "reward", "accuracy", "stop_reason", "tool_calls",
)  # fmt: skip


def log_traces(store: Store, run: Run, path: Path, limit: int) -> None:
    """Logs at most `limit` questions of a file of the record, each as a trace of the run.

    The store says which of them it has, so nothing is logged twice. If the file was written again, its traces are
    replaced.
    """
    run_id, written = run.info.run_id, path.stat().st_mtime_ns
    numbers = _chosen_numbers(path, limit)
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


def log_evaluations(store: Store, run: Run, folder: Path, limit: int) -> None:
    """Writes the table of the evaluated questions, those that are traced, into the run's artifacts.

    Args:
        folder: of the record.
        limit: as in `log_traces`.
    """
    run_id = run.info.run_id
    table = {"columns": EVALUATIONS_COLUMNS, "data": [list(row.values()) for row in _evaluated(folder, limit)]}
    store.client.log_dict(run_id, table, EVALUATIONS_ARTIFACT)
    tables = json.loads(store.client.get_run(run_id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
    # Where MLflow looks for the tables of a run.
    own = {"path": EVALUATIONS_ARTIFACT, "type": "table"}
    if own not in tables:
        store.client.set_tag(run_id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([*tables, own]))


def _evaluated(folder: Path, limit: int) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("evaluation-*.parquet")):
        (file,) = record_files(path)
        for question in numbered_questions(file, _chosen_numbers(path, limit)):
            yield from _evaluation_rows(question)


def _chosen_numbers(path: Path, limit: int) -> list[int]:
    """The numbers of at most `limit` questions of a file, chosen by their names: the same ones in every evaluation."""
    columns = pq.read_table(path, columns=["number", "question_id"]).to_pydict()
    questions = set(zip(columns["question_id"], columns["number"], strict=True))
    return [number for name, number in sorted(questions, key=lambda each: (rank(each[0]), each[1]))[:limit]]


def _evaluation_rows(question: Question) -> Iterator[dict[str, Any]]:
    """The rows of a question in the table, one for each of its trajectories, with the columns `EVALUATIONS_COLUMNS`."""
    for trajectory in question.trajectories:
        path = question.path(trajectory)
        texts = [text for turn in path for text in (turn["text"], turn["tool_output"]) if text is not None]
        values = (
            question.row["iteration"],
            question.row["question_id"],
            trajectory_name(trajectory),
            question.row["prompt"],
            "".join(texts),
            *(trajectory.row[name] for name in ("reward", "accuracy", "stop_reason")),
            sum(turn["tool"] is not None for turn in path),
        )
        yield dict(zip(EVALUATIONS_COLUMNS, values, strict=True))
