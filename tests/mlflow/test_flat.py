import math

import pytest

from rllib_arpo.mlflow.metric_groups import flat_metrics, flat_params, mlflow_key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("env_runners/entropy/delta", "env_runners/entropy/delta"),
        ("tools/web search/latency_p50", "tools/web search/latency_p50"),
        ("a:b(c)", "a_b_c_"),
        ("/a//b/../.", "_/a/_/b/_/_"),
        ("", "_"),
    ],
)
def test_keys_keep_to_mlflows_alphabet(name, key):
    assert mlflow_key(name) == key


def test_long_keys_that_differ_at_their_end_stay_different():
    keys = {mlflow_key("x" * 300 + suffix) for suffix in ("a", "b")}
    assert sorted(len(key) for key in keys) == [250, 250]


def test_params_are_the_leaves_as_short_strings():
    config = {"lr": 1e-6, "env_config": {"seed": 3, "tools": ["python"]}, "empty": {}, 7: None, "long": "y" * 7000}
    server = {"command": "npx", "args": ["--token", "abc"], "env": {"A": "abc"}}
    config |= {"mcp": {"servers": {"s": server}}, "judge": {"base_url": "http://me:abc@h/v1", "api_key": "abc"}}
    assert flat_params(config) == {
        "mcp/servers/s/command": "npx",
        "mcp/servers/s/args": "['***', '***']",
        "mcp/servers/s/env/A": "***",
        "judge/base_url": "http://***@h/v1",
        "judge/api_key": "***",
        "lr": "1e-06",
        "env_config/seed": "3",
        "env_config/tools": "['python']",
        "empty": "{}",
        "7": "None",
        "long": "y" * 6000,
    }


def test_metrics_are_the_numeric_leaves_without_the_config():
    result = {
        "env_runners": {"accuracy": 0.5, "entropy": {"delta": -0.25}, "forks": 3},
        "learners": {"default_policy": {"kl": [2.0], "histogram": [0.0, 0.0]}},
        "config": {"lr": 1e-6},
        "pid": 77,
        "done": True,
        "date": "today",
        "none": None,
        "training_iteration": 4,
    }
    assert flat_metrics(result) == {
        "env_runners/accuracy": 0.5,
        "env_runners/entropy/delta": -0.25,
        "env_runners/forks": 3.0,
        "learners/default_policy/kl": 2.0,
        "training_iteration": 4.0,
    }


def test_a_metric_that_is_not_a_number_is_kept():
    assert math.isnan(flat_metrics({"reward": float("nan")})["reward"])


def test_two_names_that_become_one_key_are_both_kept():
    assert flat_metrics({"a:b": 1, "a_b": 2, "a(b": 3}) == {"a_b": 1.0, "a_b_eb2980a5": 2.0, "a_b_ab8099ee": 3.0}
