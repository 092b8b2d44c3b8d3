"""Two iterations for real: vLLM, a tool process, two env runners, two learners, evaluation, checkpoints."""

import numpy as np
import pytest

from tests.helpers.configs import small_config
from tests.helpers.weights import engine_log_probs, learner_log_probs, learner_weights, set_learner_weights

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(ray_cluster, model_folder):
    """An algorithm after two iterations and its second result; its batches are in `algorithm.batches`."""
    config = small_config(model_folder, engine="vllm")
    config.env_runners(num_env_runners=2).learners(num_learners=2)
    config.evaluation(evaluation_interval=1)
    algorithm = config.build_algo()
    algorithm.batches = []
    update = algorithm._update
    algorithm._update = lambda batch: (algorithm.batches.append(batch), update(batch))[1]
    algorithm.train()
    result = algorithm.train()
    yield algorithm, result
    algorithm.stop()


def test_every_question_has_a_whole_tree(trained):
    algorithm, _result = trained
    assert [[s.number for s in batch] for batch in algorithm.batches] == [[0, 1], [2, 3]]
    for sampled in [s for batch in algorithm.batches for s in batch]:
        assert len(sampled.episode.agent_episodes) == 4
        assert len(sampled.tree.trajectories) == 4


def test_behaviour_log_probs_are_the_learners(trained):
    """fp32 on both sides: the mean gap between engine and learner is rounding."""
    _algorithm, result = trained
    assert result["learners"]["default_policy"]["engine_logprob_gap"] < 1e-4


def test_evaluation_runs_on_the_training_engines(trained):
    algorithm, result = trained
    assert algorithm.eval_env_runner_group is None
    assert result["evaluation"]["env_runners"]["num_episodes"] == 3
    assert [s.number for s in algorithm.last_evaluation] == [0, 1, 2]
    assert all(len(s.episode.agent_episodes) == 1 for s in algorithm.last_evaluation)


def test_evaluation_is_greedy_and_repeatable(trained):
    algorithm, _result = trained

    def answers():
        algorithm.evaluate()
        return [[t.token_ids.tolist() for t in s.tree.path("0")] for s in algorithm.last_evaluation]

    assert answers() == answers()


def test_engines_have_the_learners_weights_after_every_sync(trained):
    algorithm, _result = trained
    expected = learner_log_probs(algorithm)
    scores = engine_log_probs(algorithm)
    assert len(scores) == 2
    for score in scores:
        np.testing.assert_allclose(score, expected, atol=1e-4)


def test_checkpoint_restores_learner_engines_and_position(trained, tmp_path):
    """Into the algorithm itself, after its weights have changed; into a new one: test_resume_and_faults.py."""
    algorithm, _result = trained
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    expected, weights = learner_log_probs(algorithm), learner_weights(algorithm)
    set_learner_weights(algorithm, 0.5)
    algorithm.evaluate()
    assert not any(np.allclose(score, expected, atol=1e-4) for score in engine_log_probs(algorithm))
    algorithm.restore_from_path(path)
    for name, value in learner_weights(algorithm).items():
        np.testing.assert_array_equal(value, weights[name])
    scores = engine_log_probs(algorithm)
    assert len(scores) == 2
    for score in scores:
        np.testing.assert_allclose(score, expected, atol=1e-4)
    assert algorithm.iteration == 2
    assert algorithm._stream.next_number == 4
