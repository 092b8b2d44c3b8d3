"""One MLflow run for every model and style of an evaluation, which a repeated command goes on with."""

import shutil

from mlflow.tracking import MlflowClient

from rllib_arpo.commands import main
from tests.mlflow.conftest import empty_database as empty_database


def test_runs_have_settings_and_metrics(arguments, tmp_path, empty_database):
    assert main(["evaluate", *arguments("--samples", "2", "--limit", "4", "--baselines", "direct")]) == 0
    uri = f"sqlite:///{shutil.copy(empty_database, tmp_path / 'runs.db')}"
    for _ in range(2):
        assert main(["log-run", str(tmp_path / "out"), "--store", uri]) == 0
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
