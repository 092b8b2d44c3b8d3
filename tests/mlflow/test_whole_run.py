"""What MLflow gets of a whole run: every metric in its group, the description, the plots and the trees."""

import json
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from ray import tune

from rllib_arpo.commands import main
from rllib_arpo.mlflow.callback import ARPOMLflowCallback
from rllib_arpo.mlflow.flat import flat_metrics
from rllib_arpo.mlflow.metric_groups import OTHER, metric_name
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv

#: Group -> what a run of this environment and configuration has in it; the evaluation repeats the rollout's.
METRICS = {
    "1 progress": [
        "accuracy", "alarms", "evaluation accuracy", "evaluation format_valid", "evaluation pass_at_k",
        "evaluation reward", "format_valid", "pass_at_k", "reward", "tool calls so far",
    ],
    "2 rollout": [
        "episode_len_max", "episode_len_mean", "episode_len_min", "episode_return_max", "episode_return_min",
        "generated_tokens", "generated_tokens_lifetime", "num_env_steps_sampled", "num_env_steps_sampled_lifetime",
        "num_episodes", "num_episodes_lifetime", "questions_dropped", "questions_given_up", "questions_requeued",
        "resample_rounds", "response_tokens_mean", "stop answer", "stop broken_tool", "stop deadline",
        "stop engine_failure", "stop error", "stop malformed_call", "stop no_answer", "stop time_limit",
        "stop token_limit", "stop tool_call_limit", "tokens_per_second", "weight_lag_max",
    ],
    "3 entropy and forks": [
        "entropy after_tool", "entropy delta", "entropy delta_p10", "entropy delta_p50", "entropy delta_p90",
        "entropy initial", "entropy rise_share", "fork_depth_mean", "fork_depth_p10", "fork_depth_p90",
        "fork_events_per_question", "fork_rate", "forks_per_question", "initial_rollouts_per_question",
        "prefix_tokens_reused", "topped_up_per_question",
    ],
    "4 tools": [
        "tool calls", "tool entropy_delta", "tool entropy_delta_p10", "tool entropy_delta_p50",
        "tool entropy_delta_p90", "tool entropy_rise_share", "tool errors", "tool latency_p50", "tool latency_p99",
        "tool timeouts", "tool_calls_executed", "tool_calls_per_trajectory",
    ],
    "5 learner": [
        "clip_fraction", "engine_logprob_gap", "entropy", "grad_norm", "groups_without_signal", "learning_rate",
        "mixed_sign_share", "num_questions_trained", "policy_loss", "ratio_mean", "tokens_computed", "tokens_flat",
        "tokens_unique", "total_loss",
    ],
    "6 seconds": ["iteration", "rollout", "sync", "total", "update"],
}  # fmt: skip
OTHERS = [
    "fault_tolerance/num_env_runners_dropped_lifetime",
    "fault_tolerance/num_healthy_workers",
    "fault_tolerance/num_remote_worker_restarts",
]
PLOTS = [
    "accuracy.png", "accuracy_by_tool_calls.png", "engine_learner_gap.png", "entropy.png", "entropy_rise.png",
    "forks.png", "forks_by_iteration.png", "plots.html", "seconds.png",
]  # fmt: skip


@pytest.fixture
def trained(ray_cluster, model_folder, local_database, workspace) -> tuple[MlflowClient, Path]:
    """The store, and the folder of a trial of two iterations with an evaluation each."""
    tune.register_env("Faulty-v0", FaultyEnv)
    replies = [[7, 1], [8, 9, 1], [9, 1], [7, 2], [8, 8, 2]]
    config = small_config(model_folder, vocab_size=256, seed=5, replies=replies)
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}})
    config.adaptive_rollout(num_rollouts=8, num_initial_rollouts=4).debugging(record_share=1.0)
    config.evaluation(evaluation_interval=1, evaluation_config={"env_config": {}})
    results = tune.Tuner(
        "ARPO",
        param_space=config,
        run_config=tune.RunConfig(
            storage_path=str(workspace / "results"),
            stop={"training_iteration": 2},
            verbose=0,
            callbacks=[ARPOMLflowCallback()],
        ),
    ).fit()
    assert not results.errors
    return MlflowClient(tracking_uri=local_database), Path(results[0].path)


@pytest.mark.slow
def test_a_whole_run(trained, workspace, capsys):
    client, folder = trained
    (run,) = client.search_runs(["1"])
    check_metrics(run.data.metrics, folder)
    note = run.data.tags["mlflow.note.content"].splitlines()
    assert note[0] == "**ARPO** trains `llama` on `Faulty-v0`."
    assert f"- results: `{folder}`" in note

    def listed(place: str) -> list[str]:
        return [Path(info.path).name for info in client.list_artifacts(run.info.run_id, place)]

    assert listed("plots") == PLOTS
    assert listed("trees") == ["before_and_after", "last_iteration"]
    before_and_after = ["compared-q0.html", "compared-q1.html", "compared-q2.html", "index.html"]
    assert listed("trees/before_and_after") == before_and_after
    assert listed("trees/last_iteration") == ["index.html", "training-00002-q2.html", "training-00002-q3.html"]
    page = Path(client.download_artifacts(run.info.run_id, "trees/before_and_after/compared-q1.html")).read_text()
    assert page.index("Evaluation after 1 updates") < page.index("Evaluation after 2 updates")

    # The command draws the same of the folder.
    capsys.readouterr()
    assert main(["show", str(folder.parent), "--plots", "--output", str(workspace / "plots")]) == 0
    assert sorted(path.name for path in (workspace / "plots").iterdir()) == PLOTS
    assert capsys.readouterr().out == f"{workspace}/plots/plots.html and 8 PNG files: open it in a browser.\n"


def check_metrics(metrics: dict[str, float], folder: Path) -> None:
    """The groups are complete, and hold the numbers of Tune's last result."""
    names: dict[str, list[str]] = {}
    for name in sorted(metrics):
        group, _, rest = name.partition("/")
        names.setdefault(group, []).append(rest)
    evaluation = names.pop("7 evaluation")
    assert names == METRICS | {OTHER: OTHERS}
    rollouts = [name for group in list(METRICS)[1:4] for name in METRICS[group]]
    assert set(evaluation) <= {"tools " + name for name in METRICS["4 tools"]} | set(rollouts)
    assert len(evaluation) == 39
    last = json.loads((folder / "result.json").read_text().splitlines()[-1])
    assert metrics["1 progress/evaluation accuracy"] == last["evaluation"]["env_runners"]["accuracy"]
    assert metrics["3 entropy and forks/entropy delta"] == last["env_runners"]["entropy"]["delta"]
    # RLlib's own timers, throughputs and bookkeeping. Whether a short iteration has "perf" is a matter of time.
    paths = [path for path in flat_metrics(last) if not path.startswith("perf/")]
    left_out = [path for path in paths if metric_name(path) is None]
    assert (len(left_out), len(paths)) == (38, 38 + len(metrics))
