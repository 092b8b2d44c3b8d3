"""The thread between the training loop and one MLflow store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from mlflow.exceptions import MlflowException

from rllib_arpo.tracking.mlflow_records import MlflowStore, Record

#: Seconds after which a failed write is repeated once before the store counts as failing, since an idle connection that
#: the server has closed fails once.
SECOND_TRY_S = 0.5


class StoreWriter:
    """Applies records to a store, in order, in a thread of its own; `submit` never blocks.

    A record that fails stays at the head of the queue and is tried again every `retry_s` seconds, so a server that
    comes back gets all of them. The writer reports and skips a record that the store refuses as invalid (HTTP status
    400), since the store would refuse it again.

    Args:
        store: only the thread opens and uses it.
        retry_s: seconds between attempts while the store is failing.
        report: called from the thread, with what went wrong, whenever the store begins to fail or refuses a record.
    """

    def __init__(self, store: MlflowStore, retry_s: float, report: Callable[[Exception], None]):
        self.store = store
        self._retry_s = retry_s
        self._report = report
        self._records: deque[Record] = deque()
        self._changed = threading.Condition()
        self._failing = False
        self._stopped = threading.Event()
        # A daemon: a request that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"mlflow-writer {store.uri}", daemon=True)
        self._thread.start()

    def submit(self, record: Record) -> None:
        with self._changed:
            self._records.append(record)
            self._changed.notify_all()

    def flush(self, timeout_s: float, *, while_failing: bool = False) -> bool:
        """Waits until everything is written; returns whether it is.

        Gives up after `timeout_s` seconds and, unless `while_failing`, as soon as the store is failing.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._records or (self._failing and not while_failing), timeout_s)
            return not self._records

    def stop(self) -> list[Record]:
        """Ends the thread after its current record; returns the unwritten records, including that one."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
            return list(self._records)

    @property
    def pending(self) -> list[Record]:
        with self._changed:
            return list(self._records)

    def _work(self) -> None:
        while (record := self._next()) is not None:
            if not self._apply_until_taken(record):
                return
            with self._changed:
                self._records.popleft()
                self._failing = False
                self._changed.notify_all()

    def _next(self) -> Record | None:
        with self._changed:
            self._changed.wait_for(lambda: self._records or self._stopped.is_set())
            return None if self._stopped.is_set() else self._records[0]

    def _apply_until_taken(self, record: Record) -> bool:
        """Whether the record was written or refused; False if the writer was stopped before."""
        tried_before = False
        while True:
            # The stores behind MLflow raise errors of requests, urllib3, SQLAlchemy, boto3 and the file system; here
            # each of them means "not written". The writer drops none: it keeps the record and reports the error.
            try:
                record.apply(self.store)
                return True
            except Exception as error:
                if self._is_refusal(error):
                    self._report(error)
                    return True
                if tried_before:
                    self._begin_to_fail(error)
            if self._stopped.wait(self._retry_s if tried_before else SECOND_TRY_S):
                return False
            tried_before = True

    def _is_refusal(self, error: Exception) -> bool:
        opened = self.store.client is not None
        return opened and isinstance(error, MlflowException) and error.get_http_status_code() == 400

    def _begin_to_fail(self, error: Exception) -> None:
        if self._failing or self._stopped.is_set():
            return
        self._report(error)
        with self._changed:
            self._failing = True
            self._changed.notify_all()
