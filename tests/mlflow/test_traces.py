"""The questions of a record in an MLflow store: all of them, once, and found by what one asks for."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from mlflow.entities import Run

from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.mlflow.run_facts import RunFacts, write_facts
from rllib_arpo.mlflow.run_log import RunLog, log_traces
from rllib_arpo.mlflow.store import Store, open_store
from rllib_arpo.record.recorder import rank
from tests.mlflow.test_question_trace import FORKED
from tests.record.trees import TREE
from tests.show.conftest import write_record

TRACE_NAME = "mlflow.traceName"
NAMES = [f"q{i}" for i in range(21)]


@dataclass(frozen=True)
class Logs:
    """A store with a run, and the folder of a record."""

    store: Store
    run: Run
    folder: Path

    def record(self, model: str, trees: dict[str, QuestionTree]) -> None:
        """An iteration with these questions, and evaluations."""
        write_record(self.folder, model, [replace(tree, question_id=name) for name, tree in trees.items()])

    def log(self, limit: int = 100) -> None:
        log_traces(self.store, self.run, self.path, limit)

    @property
    def path(self) -> Path:
        return self.folder / "trees" / "iteration-00001.parquet"


def opened(database: Path) -> Logs:
    store = open_store(f"sqlite:///{database}", "traces")
    return Logs(store, store.run_of("id", "run", {}), database.parent)


@pytest.fixture
def logs(local_database) -> Logs:
    return opened(Path(local_database.removeprefix("sqlite:///")))


@pytest.fixture(scope="module")
def logged(tmp_path_factory, model_folder, empty_database) -> Logs:
    """21 questions were logged twice; every third one has the tree of `FORKED`."""
    folder = tmp_path_factory.mktemp("logged")
    logs = opened(Path(shutil.copy(empty_database, folder / "mlflow.db")))
    logs.record(model_folder, {name: FORKED if i % 3 == 0 else TREE for i, name in enumerate(NAMES)})
    logs.log()
    logs.log()
    return logs


def found(store: Store, filter_string: str | None = None, include_spans: bool = False) -> list:
    """In the order of their names."""
    traces = store.client.search_traces(
        locations=[store.experiment], filter_string=filter_string, include_spans=include_spans
    )
    return sorted(traces, key=lambda trace: int(trace.info.tags[TRACE_NAME].removeprefix("q")))


def names(traces: list) -> list[str]:
    return [trace.info.tags[TRACE_NAME] for trace in traces]


def test_none_of_21_questions_is_lost_and_none_is_there_twice(logged):
    traces = found(logged.store, include_spans=True)
    assert names(traces) == NAMES
    assert [len(trace.data.spans) for trace in traces] == [9 if i % 3 == 0 else 10 for i in range(21)]


def test_questions_are_found_by_reward_stop_reason_tool_and_run(logged):
    store = logged.store
    forked = [name for i, name in enumerate(NAMES) if i % 3 == 0]
    others = [name for name in NAMES if name not in forked]
    run_id = logged.run.info.run_id
    for filter_string, expected in {
        "feedback.reward > 0.5": forked,
        "feedback.reward < 0.5": others,
        "tag.stop_reasons LIKE '%engine_failure%'": NAMES,
        "tag.stop_reasons LIKE '%no_answer%'": others,
        "span.type = 'TOOL' AND span.status = 'ERROR'": forked,
        "tag.purpose = 'training' AND tag.iteration = '1'": NAMES,
        "name = 'q7'": ["q7"],
        f"attribute.run_id = '{run_id}'": NAMES,
        f"attribute.run_id = '{'0' * 32}'": [],
    }.items():
        assert (filter_string, names(found(store, filter_string))) == (filter_string, expected)


def test_a_trace_as_mlflow_reads_it(logged):
    store = logged.store
    [trace] = store.client.search_traces(locations=[store.experiment], filter_string="name = 'q3'")
    written_ms = logged.path.stat().st_mtime_ns / 1e6
    assert trace.info.execution_duration == 3000
    assert trace.info.request_time == pytest.approx(written_ms - 3000, abs=2)
    assert (trace.info.state, trace.info.request_preview) == ("ERROR", "q3:\nQ?")
    by_name = {span.name: span for span in trace.data.spans}
    root, fork = by_name["q3"], by_name["0.0, forked from 0 after turn 1"]
    assert (root.parent_id, root.start_time_ns // 10**6) == (None, trace.info.request_time)
    assert fork.parent_id == by_name["0, from the prompt"].span_id
    assert [span.attributes["P"] for span in trace.data.spans if "dH" in span.attributes] == [0.55]


def test_at_most_so_many_questions_are_chosen_by_name(logs, model_folder):
    logs.record(model_folder, dict.fromkeys(NAMES, FORKED))
    logs.log(2)
    assert sorted(names(found(logs.store))) == sorted(sorted(NAMES, key=rank)[:2])


def kinds(logs: Logs) -> list[tuple[str, str, str]]:
    """Of all traces."""
    traces = logs.store.client.search_traces(locations=[logs.store.experiment], include_spans=False, max_results=500)
    return sorted(tuple(trace.info.tags[name] for name in ("purpose", "iteration", TRACE_NAME)) for trace in traces)


def test_a_folder_s_files_are_taken_when_they_appear(logs, model_folder):
    """The record writes in a thread: its files may follow their results."""
    write_facts(logs.folder, RunFacts("id", "run"))
    logs.record(model_folder, dict.fromkeys("ab", FORKED))
    late = logs.folder / "trees" / "evaluation-00003.parquet"
    late.rename(logs.folder / "late")
    log = RunLog(logs.folder, logs.store)
    for _ in range(2):
        log.log()
    first = [("evaluation", "0"), ("training", "1")]
    assert kinds(logs) == [(*kind, name) for kind in first for name in "ab"]
    (logs.folder / "late").rename(late)
    log.log()
    assert kinds(logs) == [(*kind, name) for kind in sorted([*first, ("evaluation", "3")]) for name in "ab"]
