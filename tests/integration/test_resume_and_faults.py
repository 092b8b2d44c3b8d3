"""Stopped runs go on where they were; dead env runners do not lose questions, and do not pass in silence."""

from __future__ import annotations

import numpy as np
import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_arpo import ARPO, DAPOConfig, GRPOConfig, ReinforcePlusPlusConfig
from tests.helpers.configs import small_config
from tests.helpers.parquet import parquet, row
from tests.helpers.scripted_env import ANSWER
from tests.helpers.weights import learner_weights


def questions(algorithm) -> list[str]:
    """Trains one iteration; returns the questions that were asked."""
    batches = []
    update = algorithm._update
    algorithm._update = lambda batch: (batches.append(batch), update(batch))
    algorithm.train()
    algorithm._update = update
    return [sampled.episode.id_ for batch in batches for sampled in batch]


def test_resumed_run_asks_the_same_questions_and_takes_the_same_step(scripted, tmp_path):
    algorithm = scripted.build_algo()
    assert questions(algorithm) == ["q0", "q1"]
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    before = learner_weights(algorithm)
    assert questions(algorithm) == ["q2", "q3"]
    uninterrupted = learner_weights(algorithm)
    algorithm.stop()
    assert any(not np.array_equal(before[name], uninterrupted[name]) for name in before)

    resumed = ARPO.from_checkpoint(path)
    assert questions(resumed) == ["q2", "q3"]
    for name, value in learner_weights(resumed).items():
        np.testing.assert_allclose(value, uninterrupted[name], rtol=0, atol=1e-7)
    resumed.stop()


def test_killed_env_runner_is_replaced_and_its_questions_are_asked_again(scripted, tmp_path):
    scripted.env_runners(num_env_runners=2)
    scripted.environment(env_config={"die_at": 3, "marker": str(tmp_path / "died")})
    algorithm = scripted.build_algo()
    try:
        assert questions(algorithm) == ["q0", "q1"]
        assert questions(algorithm) == ["q2", "q3"]
        assert (tmp_path / "died").exists()
        assert questions(algorithm) == ["q4", "q5"]
        algorithm.restore_env_runners(algorithm.env_runner_group)
        versions = algorithm.env_runner_group.foreach_env_runner("weight_version", local_env_runner=False)
        assert versions == [3] * len(versions)
        assert versions
    finally:
        algorithm.stop()


def test_three_failures_in_a_row_end_the_run_with_the_cause(scripted):
    scripted.env_runners(num_env_runners=1).environment(env_config={"die_at": 0})
    algorithm = scripted.build_algo()
    try:
        with pytest.raises(RuntimeError, match=r"failed 3 times in a row; \d questions are missing. Last cause"):
            algorithm.train()
    finally:
        algorithm.stop()


def test_an_engine_that_dies_in_mid_tree_is_replaced_and_its_questions_are_asked_again(scripted, caplog):
    """Every engine dies at its 14th step, after some questions have ended and while others are under way."""
    scripted.language_model(engine_kwargs={**scripted.engine_kwargs, "fail_at_step": 14})
    scripted.env_runners(num_env_runners=1, num_envs_per_env_runner=2).training(questions_per_batch=6)
    algorithm = scripted.build_algo()
    try:
        assert questions(algorithm) == [f"q{i}" for i in range(6)]
    finally:
        algorithm.stop()
    assert "engine died at step 14" in caplog.text


def test_bad_data_on_a_remote_env_runner_ends_the_run_at_once(ray_cluster, model_folder, tmp_path):
    path = parquet(tmp_path / "holes.parquet", [row(), row(answer=""), row(), row()])
    config = small_config(model_folder).env_runners(num_env_runners=1).training(questions_per_batch=4)
    config.environment("ParquetQuestions-v0", env_config={"path": path, "tools": ["python"]})
    algorithm = config.build_algo()
    try:
        with pytest.raises(ValueError, match=r"holes\.parquet.*row 1"):
            algorithm.train()
    finally:
        algorithm.stop()


def test_restoring_another_checkpoint_of_the_same_age_reaches_the_engine(scripted, tmp_path):
    one = scripted.build_algo()
    one.train()
    path = one.save_to_path(str(tmp_path / "one"))
    expected = learner_weights(one)
    one.stop()
    other = scripted.copy(copy_frozen=False).training(lr=0.05).build_algo()
    other.train()
    assert other._weight_version == 1
    other.restore_from_path(path)
    engine = other.env_runner_group.local_env_runner.engine
    for name, value in expected.items():
        np.testing.assert_array_equal(engine.weights[name], value)
    other.stop()


@pytest.mark.parametrize("config_class", [GRPOConfig, DAPOConfig, ReinforcePlusPlusConfig])
def test_baselines_train_without_forks(scripted, model_folder, config_class):
    config = small_config(
        model_folder, config=config_class(), vocab_size=256, end_token_id=ANSWER, end_probability=0.3
    ).environment("Faulty-v0", env_config={"rewards": {"0": 1.0}})
    config.overlong_buffer_tokens = config.overlong_buffer_tokens and 20
    algorithm = config.build_algo()
    before = learner_weights(algorithm)
    result = algorithm.train()
    assert result["env_runners"]["forks_per_question"] == 0
    assert any(not np.array_equal(before[name], value) for name, value in learner_weights(algorithm).items())
    algorithm.stop()


class CountEpisodes(RLlibCallback):
    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("agents_of_callback", len(episode.agent_episodes), reduce="sum")


def test_users_callbacks_run_on_the_env_runners(scripted):
    algorithm = scripted.callbacks(CountEpisodes).build_algo()
    assert algorithm.train()["env_runners"]["agents_of_callback"] == 8
    algorithm.stop()


def test_an_engine_without_the_weights_refuses_to_sample(scripted):
    algorithm = scripted.build_algo()
    algorithm._weight_version += 1
    with pytest.raises(RuntimeError, match="Env runner 0 has weights 0, not 1"):
        algorithm._sample_batch()
    algorithm.stop()


def test_groups_without_signal_are_replaced_by_new_questions(scripted):
    """DAPO: questions 0 and 1 give no signal, so the next ones are asked, two rounds at most."""
    scripted.environment(env_config={"rewards": {"0": 0.0}}).training(max_resample_rounds=2)
    algorithm = scripted.build_algo()
    asked = []
    ask = algorithm._dispatcher.ask
    algorithm._dispatcher.ask = lambda numbers: (asked.append(list(numbers)), ask(numbers))
    result = algorithm.train()
    assert asked == [[0, 1], [2, 3], [4, 5]]
    assert result["env_runners"]["resample_rounds"] == 2
    assert result["learners"]["default_policy"]["groups_without_signal"] == 2
    algorithm.stop()
