"""Names and values of params and metrics; the metrics of a whole result: tests/integration/test_tune.py."""

import math

import pytest

from rllib_arpo.mlflow.flat import flat_metrics, flat_params, mlflow_key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tools/web search/latency_p50", "tools/web search/latency_p50"),
        ("a:b(c)", "a_b_c_"),
        ("/a//b/../.", "_/a/_/b/_/_"),
        ("", "_"),
        ("x" * 300 + "a", "x" * 249 + "a"),
    ],
)
def test_keys_keep_to_mlflows_alphabet(name, key):
    assert mlflow_key(name) == key


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
        "env_runners": {"accuracy": 0.5, "entropy": {"delta": -0.25}, "reward": float("nan")},
        "learners": {"default_policy": {"kl": [2.0], "histogram": [0.0, 0.0], "a_throughput": {"mean": 3.0}}},
        "perf": {"ram_util_percent": 30.0},
        "config": {"lr": 1e-6},
        "pid": 77,
        "done": True,
        "date": "today",
        "none": None,
        "training_iteration": 4,
    }
    found = flat_metrics(result)
    assert math.isnan(found.pop("env_runners/reward"))
    assert found == {
        "env_runners/accuracy": 0.5,
        "env_runners/entropy/delta": -0.25,
        "learners/default_policy/kl": 2.0,
    }
