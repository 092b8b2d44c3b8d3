"""One MLflow run for every model and style, which a repeated command goes on with."""

import pytest
from mlflow.tracking import MlflowClient

from rllib_arpo.commands import run_command


@pytest.fixture
def uri(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.mark.slow
def test_runs_have_settings_and_metrics(arguments, uri):
    command = arguments("--samples", "2", "--limit", "4", "--baselines", "direct")
    assert run_command("evaluate", command) == 0
    assert run_command("evaluate", command) == 0
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("evaluation")
    runs = {run.info.run_name: run.data for run in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == ["llama direct", "llama tools"]
    tools, direct = runs["llama tools"], runs["llama direct"]
    assert {"arithmetic/pass_at_1", "arithmetic/pass_at_2", "arithmetic/tool_calls/low"} <= tools.metrics.keys()
    assert direct.metrics["arithmetic/tool_calls"] == 0.0
    assert tools.metrics["arithmetic/tool_calls"] > 0.0
    assert (tools.params["style"], tools.params["settings/samples"]) == ("tools", "2")
    assert tools.params["command"].startswith("rllib-arpo evaluate ")
    assert tools.params["tasks/arithmetic/questions"] == "4"
    assert direct.tags["mlflow.note.content"] == f"Evaluation of `{direct.params['model']}` in the style `direct`."


def test_a_store_that_cannot_be_opened_is_told_before_the_engine_starts(arguments, uri, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'file' / 'runs.db'}")
    monkeypatch.setattr("rllib_arpo.evaluation.runner.make_engine", lambda *_args: pytest.fail("an engine was started"))
    assert run_command("evaluate", arguments()) == 2
    assert "MLflow cannot open the local store" in capsys.readouterr().err
