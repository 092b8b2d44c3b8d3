import logging
import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from werkzeug.serving import make_server


@dataclass(eq=False)
class FakeTrial:
    """What the callback reads of a Tune trial."""

    trial_id: str
    config: dict = field(default_factory=lambda: {"lr": 1e-6, "env_config": {"seed": 3}})
    checkpoint: object = None
    trainable_name: str = "ARPO"
    path: str | None = None
    local_path: str | None = None

    def __str__(self) -> str:
        return f"ARPO_env_{self.trial_id}"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """Creating MLflow's tables takes seconds, so it is done once and the file is copied."""
    database = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments()
    return database


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch, request) -> Path:
    """A current directory of its own, no MLflow settings from outside, and none left behind."""
    monkeypatch.chdir(tmp_path)
    outside = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("MLFLOW_")}
    yield tmp_path
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        del os.environ[name]
    os.environ.update(outside)


@pytest.fixture
def local_database(workspace, empty_database) -> str:
    """The URI of the store that the callback uses by default, with its tables already made."""
    shutil.copy(empty_database, workspace / "mlflow.db")
    return f"sqlite:///{workspace / 'mlflow.db'}"


class TrackingServer:
    """MLflow's real REST application in threads of this process; can be stopped, started again, and made to hang."""

    def __init__(self, app, port: int = 0):
        self._app = app
        self._resumed = threading.Event()
        self._resumed.set()
        self._start(port)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def start_again(self) -> None:
        self._start(self._port)

    def hang(self) -> None:
        """From now on requests are accepted and not answered."""
        self._resumed.clear()

    def wake(self) -> None:
        self._resumed.set()

    def _start(self, port: int) -> None:
        self._server = make_server("127.0.0.1", port, self._answer, threaded=True)
        self._port = self._server.port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def _answer(self, environ, start_response):
        self._resumed.wait()
        return self._app(environ, start_response)


@pytest.fixture(scope="session")
def tracking_application(tmp_path_factory, empty_database):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, folder / "server.db")
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder / 'server.db'}"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(folder / "artifacts")
    from mlflow.server import app

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    yield app
    del os.environ["_MLFLOW_SERVER_FILE_STORE"], os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"]


@pytest.fixture
def server(tracking_application) -> TrackingServer:
    server = TrackingServer(tracking_application)
    yield server
    server.wake()
    server.stop()
