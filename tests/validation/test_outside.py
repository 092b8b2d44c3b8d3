"""Checks before anything starts, beyond the keys: models, data, the cluster."""

from __future__ import annotations

import json

import pytest
from ray import tune

from rllib_arpo import ARPO, ARPOConfig
from tests.helpers.configs import small_config
from tests.helpers.parquet import parquet, row
from tests.validation.sentences import message


def test_context_beyond_the_models(model_folder):
    config = small_config(model_folder).language_model(max_context_tokens=4096)
    assert message(config) == f"max_context_tokens=4096: the model {model_folder!r} reads at most 2048 tokens."


def test_prompt_longer_than_the_context(model_folder):
    config = small_config(model_folder).language_model(max_context_tokens=150)
    assert "max_context_tokens" in message(config)


@pytest.mark.parametrize(
    ("model_config", "architecture"),
    [
        ({"model_type": "vit"}, "not stated"),
        ({"model_type": "llama"}, "not stated"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
    ],
)
def test_not_a_causal_language_model(tmp_path, model_config, architecture):
    (tmp_path / "config.json").write_text(json.dumps(model_config))
    assert message(small_config(str(tmp_path))) == (
        f"model_name_or_path={str(tmp_path)!r} is not a causal language model: its architecture is {architecture}."
    )


def test_a_folder_that_holds_no_model(tmp_path):
    expected = f"model_name_or_path={str(tmp_path)!r} is neither a folder with a Hugging Face model nor the id of one"
    assert message(small_config(str(tmp_path))).startswith(expected)


def test_missing_hub_model():
    assert message(small_config("nobody/no-such-model")).startswith(
        "model_name_or_path='nobody/no-such-model' is neither"
    )


def questions_from(model: str, path: str) -> ARPOConfig:
    return small_config(model).environment("ParquetQuestions-v0", env_config={"path": path, "tools": ["python"]})


def test_missing_parquet(model_folder, tmp_path):
    assert str(tmp_path / "no.parquet") in message(questions_from(model_folder, str(tmp_path / "no.parquet")))


def test_truncated_parquet(model_folder, tmp_path):
    path = tmp_path / "cut.parquet"
    parquet(path, [row()] * 50)
    path.write_bytes(path.read_bytes()[:-100])
    assert "cut.parquet" in message(questions_from(model_folder, str(path)))


def test_row_without_answer_ends_the_run_with_file_and_row(ray_cluster, model_folder, tmp_path):
    path = parquet(tmp_path / "holes.parquet", [row(), row(answer=""), row(), row()])
    config = questions_from(model_folder, path).training(questions_per_batch=4)
    algorithm = config.build_algo()
    try:
        with pytest.raises(ValueError, match=r"holes\.parquet.*row 1"):
            algorithm.train()
    finally:
        algorithm.stop()


def test_row_without_question(model_folder, tmp_path):
    path = parquet(tmp_path / "first.parquet", [row(question="")])
    assert "row 0" in message(questions_from(model_folder, path))


def test_more_cpus_than_the_cluster_has(model_folder, ray_cluster):
    config = small_config(model_folder).env_runners(num_env_runners=4, num_cpus_per_env_runner=1)
    expected = (
        "The run asks for 4 CPUs in total and the cluster has 2: lower num_cpus_per_* (fractions are fine) or the "
        "number of actors."
    )
    assert message(config) == expected


def test_more_gpus_than_the_cluster_has(model_folder, ray_cluster):
    config = small_config(model_folder).env_runners(num_env_runners=1, num_gpus_per_env_runner=8)
    assert "8 GPUs in total and the cluster has 0" in message(config)


def test_tune_counts_the_main_process_too(model_folder, ray_cluster):
    config = small_config(model_folder).env_runners(num_env_runners=2, num_cpus_per_env_runner=1)
    config.validate()
    with pytest.raises(ValueError, match="3 CPUs in total"):
        ARPO.default_resource_request(config)


def test_unknown_key_in_tunes_param_space(model_folder, ray_cluster, tmp_path):
    param_space = small_config(model_folder).to_dict() | {"num_rollout": 8}
    with pytest.raises(Exception, match="'num_rollout' is not a key of ARPOConfig"):
        tune.Tuner(
            "ARPO",
            param_space=param_space,
            run_config=tune.RunConfig(
                storage_path=str(tmp_path),
                stop={"training_iteration": 1},
                failure_config=tune.FailureConfig(fail_fast="raise"),
            ),
        ).fit()
