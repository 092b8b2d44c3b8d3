"""The questions of a record in an MLflow store: all of them, once, and found by what one asks for."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.record.recorder import rank
from rllib_arpo.tracking.mlflow_callback import ARPOMLflowCallback
from rllib_arpo.tracking.mlflow_records import MlflowStore, OpenStore, StartRun
from rllib_arpo.tracking.recorded_questions import EVALUATIONS_COLUMNS, LogEvaluations, LogTraces, RecordFolders
from tests.record.trees import TREE
from tests.show.conftest import write_record
from tests.tracking.conftest import FakeTrial
from tests.tracking.test_trace_spans import FORKED

NAMES = [f"q{i}" for i in range(21)]


def opened(database: Path) -> MlflowStore:
    """An open store with the run of the trial "t1"."""
    store = MlflowStore(f"sqlite:///{database}", "traces")
    OpenStore(1.0).apply(store)
    StartRun("t1", "run", {}, 0).apply(store)
    return store


@pytest.fixture
def store(local_database) -> MlflowStore:
    return opened(Path(local_database.removeprefix("sqlite:///")))


def recorded(folder: Path, model: str, trees: dict[str, QuestionTree]) -> LogTraces:
    """Of an iteration with these questions."""
    write_record(folder, model, [replace(tree, question_id=name) for name, tree in trees.items()])
    return LogTraces("t1", folder / "trees" / "iteration-00001.parquet", 100)


@pytest.fixture(scope="module")
def logged(tmp_path_factory, model_folder, empty_database) -> tuple[MlflowStore, LogTraces]:
    """A store in which 21 questions were logged twice; every third one has the tree of `FORKED`."""
    folder = tmp_path_factory.mktemp("logged")
    store = opened(Path(shutil.copy(empty_database, folder / "mlflow.db")))
    log = recorded(folder, model_folder, {name: FORKED if i % 3 == 0 else TREE for i, name in enumerate(NAMES)})
    log.apply(store)
    log.apply(store)
    return store, log


def found(store: MlflowStore, filter_string: str | None = None, include_spans: bool = False) -> list:
    """In the order of their names."""
    traces = store.client.search_traces(
        locations=[store.experiment], filter_string=filter_string, include_spans=include_spans
    )
    return sorted(traces, key=lambda trace: int(trace.info.tags["question_id"].removeprefix("q")))


def names(traces: list) -> list[str]:
    return [trace.info.tags["question_id"] for trace in traces]


def test_none_of_21_questions_is_lost_and_none_is_there_twice(logged):
    traces = found(logged[0], include_spans=True)
    assert names(traces) == NAMES
    assert [len(trace.data.spans) for trace in traces] == [9 if i % 3 == 0 else 10 for i in range(21)]


def test_questions_are_found_by_reward_stop_reason_tool_and_run(logged):
    store, _ = logged
    forked = [name for i, name in enumerate(NAMES) if i % 3 == 0]
    others = [name for name in NAMES if name not in forked]
    run_id = store.run_id("t1")
    for filter_string, expected in {
        "feedback.reward > 0.5": forked,
        "feedback.reward < 0.5": others,
        "feedback.best_reward >= 1": NAMES,
        "tag.stop_reasons LIKE '%engine_failure%'": NAMES,
        "tag.stop_reasons LIKE '%no_answer%'": others,
        "tag.tools LIKE '%python%'": forked,
        "tag.failed_tools = 'python'": forked,
        "span.type = 'TOOL' AND span.status = 'ERROR'": forked,
        "tag.purpose = 'training' AND tag.iteration = '1'": NAMES,
        "name = 'q7'": ["q7"],
        f"attribute.run_id = '{run_id}'": NAMES,
        f"attribute.run_id = '{'0' * 32}'": [],
    }.items():
        assert (filter_string, names(found(store, filter_string))) == (filter_string, expected)


def test_a_trace_as_mlflow_reads_it(logged):
    store, log = logged
    [trace] = store.client.search_traces(locations=[store.experiment], filter_string="name = 'q3'")
    written_ms = log.path.stat().st_mtime_ns / 1e6
    assert trace.info.execution_duration == 3000
    assert trace.info.request_time == pytest.approx(written_ms - 3000, abs=2)
    assert (trace.info.state, trace.info.request_preview) == ("ERROR", "q3: Q?")
    by_name = {span.name: span for span in trace.data.spans}
    root, fork, python = by_name["q3"], by_name["fork 0.0 after turn 1"], by_name["python"]
    assert (root.parent_id, root.start_time_ns // 10**6) == (None, trace.info.request_time)
    assert fork.parent_id == by_name["trajectory 0"].span_id
    assert (fork.attributes["dH"], fork.attributes["P"]) == (0.25, 0.55)
    assert (python.span_type, python.inputs, python.outputs) == ("TOOL", "1/0", "no")
    assert (python.status.status_code, python.status.description) == ("ERROR", "error")
    assert (python.start_time_ns - root.start_time_ns, python.end_time_ns - root.start_time_ns) == (2e9, 2.25e9)
    assert by_name["turn 1"].attributes["entropies"] == [0.5]


def test_a_file_that_was_written_again_replaces_its_traces(store, model_folder, tmp_path):
    recorded(tmp_path, model_folder, {"q1": TREE, "q5": TREE}).apply(store)
    alone = replace(FORKED, trajectories=FORKED.trajectories[:1])
    recorded(tmp_path, model_folder, {"q5": alone, "q30": alone}).apply(store)
    traces = found(store, include_spans=True)
    assert names(traces) == ["q5", "q30"]
    assert [len(trace.data.spans) for trace in traces] == [7, 7]


def test_at_most_so_many_questions_are_chosen_by_name(store, model_folder, tmp_path):
    log = recorded(tmp_path, model_folder, dict.fromkeys(NAMES, FORKED))
    for limit, expected in ((2, 2), (1, 2), (3, 3)):
        replace(log, limit=limit).apply(store)
        assert sorted(names(found(store))) == sorted(sorted(NAMES, key=rank)[:expected])


def test_the_table_of_evaluations(store, model_folder, tmp_path):
    write_record(tmp_path, model_folder, [replace(FORKED, question_id="lamps")])
    for _ in range(2):
        LogEvaluations("t1", tmp_path / "trees", 8).apply(store)
    run = store.client.get_run(store.run_id("t1"))
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "evaluations.json", "type": "table"}]
    table = json.loads(Path(store.client.download_artifacts(run.info.run_id, "evaluations.json")).read_text())
    assert table["columns"] == list(EVALUATIONS_COLUMNS)
    assert table["data"] == [
        [iteration, "lamps", *rest]
        for iteration in (0, 3)
        for rest in (
            ("trajectory 0", "Q?", "a12bnoc", 1.0, 0.5, "answer", 2),
            ("fork 0.0 after turn 1", "Q?", "a12de", 0.0, 0.0, "engine_failure", 1),
        )
    ]


def read_files(uri: str, experiment: str = "ARPO") -> list[tuple[str, str]]:
    """(file of the record, question) of all traces."""
    client = MlflowClient(tracking_uri=uri)
    traces = client.search_traces(
        locations=[client.get_experiment_by_name(experiment).experiment_id], include_spans=False, max_results=500
    )
    return sorted((trace.info.trace_metadata["record_file"], trace.info.tags["question_id"]) for trace in traces)


def test_files_are_taken_when_they_appear_and_the_last_ones_at_the_end(local_database, model_folder, tmp_path):
    """The record writes in a thread: its files may follow their results."""
    write_record(tmp_path / "made", model_folder, [replace(FORKED, question_id=name) for name in "ab"])
    folder = tmp_path / "trial" / "trees"
    folder.mkdir(parents=True)
    trial = FakeTrial("t1", path=str(tmp_path / "trial"))
    callback = ARPOMLflowCallback()
    callback.setup()
    callback.log_trial_start(trial)
    callback.log_trial_result(1, trial, {"training_iteration": 1})
    (tmp_path / "made" / "trees" / "iteration-00001.parquet").rename(folder / "iteration-00001.parquet")
    callback.log_trial_result(2, trial, {"training_iteration": 2})
    callback._local.flush(60)
    assert read_files(local_database) == [("iteration-00001.parquet", "a"), ("iteration-00001.parquet", "b")]
    callback.log_trial_end(trial)
    (tmp_path / "made" / "trees" / "evaluation-00003.parquet").rename(folder / "evaluation-00003.parquet")
    callback.on_experiment_end([trial])
    assert read_files(local_database) == [
        ("evaluation-00003.parquet", "a"),
        ("evaluation-00003.parquet", "b"),
        ("iteration-00001.parquet", "a"),
        ("iteration-00001.parquet", "b"),
    ]


def test_a_run_that_goes_on_logs_what_was_missing_and_nothing_twice(local_database, model_folder, tmp_path):
    write_record(tmp_path, model_folder, [replace(FORKED, question_id=name) for name in "ab"])
    trial = FakeTrial("t1", path=str(tmp_path))
    (tmp_path / "trees" / "evaluation-00003.parquet").rename(tmp_path / "later")
    state = {}
    for iteration in (1, 2):
        callback = ARPOMLflowCallback()
        callback.set_state(state or callback.get_state())
        callback.setup()
        callback.log_trial_start(trial)
        callback.log_trial_result(iteration, trial, {"training_iteration": iteration})
        state = callback.get_state()
        callback.close()
        if iteration == 1:
            state = callback.get_state()
            (tmp_path / "later").rename(tmp_path / "trees" / "evaluation-00003.parquet")
    files = ("evaluation-00000.parquet", "evaluation-00003.parquet", "iteration-00001.parquet")
    assert read_files(local_database) == [(file, name) for file in files for name in "ab"]


def test_without_traces_a_record_is_not_read(local_database, tmp_path):
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "iteration-00001.parquet").write_text("not a table")
    folders = RecordFolders(0)
    folders.add(FakeTrial("t1", path=str(tmp_path)))
    assert list(folders.new_records()) == []
    with pytest.raises(ValueError, match=r"^traces=-1: must be at least 0\.$"):
        ARPOMLflowCallback(traces=-1)


def test_a_trial_whose_folder_cannot_be_read_costs_the_others_nothing(tmp_path, monkeypatch):
    folders = RecordFolders(8)
    for name in ("a", "b"):
        (tmp_path / name / "trees").mkdir(parents=True)
        (tmp_path / name / "trees" / "iteration-00001.parquet").touch()
        folders.add(FakeTrial(name, path=str(tmp_path / name)))
    stat, found = Path.stat, []

    def of_b_fails(path, **options):
        if path.parent == tmp_path / "b" / "trees":
            raise PermissionError(path)
        return stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", of_b_fails)
        with pytest.raises(PermissionError):
            found.extend(folders.new_records())
    found.extend(folders.new_records())
    assert [record.trial_id for record in found] == ["a", "b"]


def test_a_server_without_traces_gets_the_metrics_behind_them(server, local_database, model_folder, tmp_path, caplog):
    """The server of these tests has MLflow's REST interface, but not the one for spans."""
    write_record(tmp_path, model_folder, [replace(FORKED, question_id="a")])
    trial = FakeTrial("t1", path=str(tmp_path))
    callback = ARPOMLflowCallback(server.uri, experiment_name="untraced")
    callback.setup()
    callback.log_trial_start(trial)
    for iteration in (1, 2):
        callback.log_trial_result(iteration, trial, {"training_iteration": iteration, "env_runners": {"accuracy": 0.5}})
    callback.log_trial_end(trial)
    callback.on_experiment_end([trial])
    client = MlflowClient(tracking_uri=server.uri)
    [run] = client.search_runs([client.get_experiment_by_name("untraced").experiment_id])
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "1 progress/accuracy")] == [1, 2]
    assert len(read_files(local_database, "untraced")) == 3
    [message] = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert message.startswith(f"The MLflow server {server.uri} does not accept records (MlflowException: ")
