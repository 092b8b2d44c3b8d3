"""What follows from the declarations of options: methods, defaults, help, who reads them in evaluation."""

from pathlib import Path

import pytest
from ray import tune
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo import ARPOConfig
from rllib_arpo.options.tables import METHODS, OPTIONS


@pytest.mark.parametrize("method", METHODS)
def test_a_method_sets_what_it_is_given_and_nothing_else(method):
    for name in METHODS[method].options:
        config, value = ARPOConfig(), object()
        untouched = dict(vars(config))
        assert getattr(config, method)(**{name: value}) is config
        assert {key: v for key, v in vars(config).items() if v is not untouched[key]} == {name: value}


@pytest.mark.parametrize(
    ("method", "keyword"), [("adaptive_rollout", "num_rolouts"), ("training", "grad_clp"), ("language_model", "zzz")]
)
def test_an_unknown_keyword_is_refused(method, keyword):
    with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected keyword argument '{keyword}'"):
        getattr(ARPOConfig(), method)(**{keyword: 8})


def test_a_name_stands_for_one_option_which_neither_rllib_nor_a_method_has():
    assert len(OPTIONS) == sum(len(method.options) for method in METHODS.values())
    assert set(vars(ARPOConfig())) - set(vars(AlgorithmConfig())) == set(OPTIONS)
    assert not OPTIONS.keys() & set(dir(ARPOConfig))


def test_defaults_are_a_configurations_own():
    ARPOConfig().engine_kwargs["seed"] = 1
    assert ARPOConfig().engine_kwargs == {}


def test_paths_are_absolute_as_soon_as_they_are_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("models/tiny.v1", "wiki.index", "qa"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "rows.jsonl").write_text("")
    here = {
        "task": "qa",  # Also a folder here; names stay.
        "path": ["rows.jsonl", "none.jsonl", "/rows.jsonl"],
        "tools": {
            "search": {"index": "wiki.index", "cache": "new.sqlite", "backend": "local"},
            "own:Tool": {"db": "rows.jsonl"},
        },
        "judge": {"model": "models/tiny.v1", "base_url": "http://h/rows.jsonl"},
    }
    there = {
        "task": "qa",
        "path": [f"{tmp_path}/rows.jsonl", "none.jsonl", "/rows.jsonl"],
        "tools": {
            "search": {"index": f"{tmp_path}/wiki.index", "cache": f"{tmp_path}/new.sqlite", "backend": "local"},
            "own:Tool": {"db": f"{tmp_path}/rows.jsonl"},
        },
        "judge": {"model": "models/tiny.v1", "base_url": "http://h/rows.jsonl"},
    }
    models = tune.grid_search(["models/tiny.v1", "Qwen/Qwen2.5-0.5B", Path("none")])
    config = ARPOConfig().environment("ToolEnv-v0", env_config=here).language_model(model_name_or_path=models)
    config.evaluation(evaluation_config={"env_config": {"path": "rows.jsonl"}})
    assert config.env_config == there
    assert config.evaluation_config["env_config"] == {"path": f"{tmp_path}/rows.jsonl"}
    assert config.model_name_or_path == {
        "grid_search": [f"{tmp_path}/models/tiny.v1", "Qwen/Qwen2.5-0.5B", tmp_path / "none"]
    }
