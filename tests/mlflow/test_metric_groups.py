"""The names of metrics; those of a whole result: tests/integration/test_tune.py."""

import pytest

from rllib_arpo.mlflow.metric_groups import metric_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("env_runners/accuracy", "1 progress/accuracy"),
        ("evaluation/env_runners/accuracy", "1 progress/evaluation accuracy"),
        ("env_runners/episode_return_max", "2 rollout/episode_return_max"),
        ("env_runners/stop/token_limit", "2 rollout/stop token_limit"),
        ("env_runners/entropy/delta_p10", "3 entropy and forks/entropy delta_p10"),
        ("env_runners/fork_rate", "3 entropy and forks/fork_rate"),
        ("env_runners/tools/web search/latency_p50", "4 tools/web search latency_p50"),
        ("learners/default_policy/kl", "5 learner/kl"),
        ("timers/rollout", "6 seconds/rollout"),
        ("evaluation/env_runners/tools/search/calls", "7 evaluation/tools search calls"),
        ("env_runners/my/metric", "8 other/env_runners/my/metric"),
        ("timers/training_step", None),
        ("learners/default_policy/num_module_steps_trained_lifetime_throughput/throughput_since_last_reduce", None),
    ],
)
def test_the_name_of_a_path(path, name):
    assert metric_name(path) == name


def test_all_metrics_have_names_if_asked():
    assert metric_name("timers/training_step", all_metrics=True) == "8 other/timers/training_step"
    assert metric_name("env_runners/accuracy", all_metrics=True) == "1 progress/accuracy"
