import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException

from rllib_arpo.tracking.mlflow_writer import StoreWriter


@dataclass
class ListRecord:
    """Appends its name to `written`, after raising the errors that it was given, one per attempt."""

    name: str
    written: list
    errors: list = field(default_factory=list)

    def apply(self, store) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.written.append(self.name)


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def writer(reports) -> StoreWriter:
    store = SimpleNamespace(uri="list", client="opened")
    writer = StoreWriter(store, retry_s=0.05, report=lambda error: reports.append(str(error)))
    yield writer
    writer.stop()


def test_records_are_written_in_order(writer, reports):
    written = []
    for name in "abcdefgh":
        writer.submit(ListRecord(name, written))
    assert writer.flush(5)
    assert "".join(written) == "abcdefgh"
    assert reports == []


def test_one_failure_is_not_worth_a_word(writer, reports):
    written = []
    writer.submit(ListRecord("a", written, errors=[OSError("connection was idle")]))
    assert writer.flush(5)
    assert (written, reports) == (["a"], [])


def test_a_failing_store_is_reported_and_gets_everything_when_it_works_again(writer, reports):
    written = []
    writer.submit(ListRecord("a", written, errors=[OSError(f"down {i}") for i in range(5)]))
    writer.submit(ListRecord("b", written))
    assert not writer.flush(5)
    assert written == []
    assert writer.flush(5, while_failing=True)
    assert (written, reports) == (["a", "b"], ["down 1"])


def test_a_refused_record_is_reported_and_left_out(writer, reports):
    written = []
    writer.submit(ListRecord("a", written, errors=[MlflowException("bad key", INVALID_PARAMETER_VALUE)]))
    writer.submit(ListRecord("b", written))
    assert writer.flush(5)
    assert (written, reports) == (["b"], ["bad key"])


def test_stop_hands_back_what_is_not_written(writer):
    blocked, release, written = threading.Event(), threading.Event(), []

    class Slow(ListRecord):
        def apply(self, store) -> None:
            blocked.set()
            release.wait()

    records = [Slow("slow", written), ListRecord("b", written)]
    for record in records:
        writer.submit(record)
    blocked.wait()
    assert not writer.flush(0.05)
    assert writer.stop() == records
    release.set()
    writer._thread.join(5)
    assert written == []
