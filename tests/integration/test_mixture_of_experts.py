"""Two iterations of a mixture of experts, with forks: its routers and experts learn, and reach the engine."""

import numpy as np
from ray import tune

from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model
from tests.helpers.parity_env import ParityEnv
from tests.helpers.weights import engine_log_probs, learner_log_probs, learner_weights, weights_of


def test_a_mixture_of_experts_trains(ray_cluster, tmp_path):
    tune.register_env("Parity-v0", ParityEnv)
    folder = tiny_model(tmp_path / "model", "qwen3_moe")
    config = small_config(folder, engine="vllm", kv_cache_memory_bytes=16 << 20)
    config.environment("Parity-v0").adaptive_rollout(branching="always")
    algorithm = config.build_algo()
    [at_start] = engine_log_probs(algorithm)
    np.testing.assert_allclose(at_start, learner_log_probs(algorithm), atol=1e-4)
    for _ in range(2):
        result = algorithm.train()
        learned = result["learners"]["default_policy"]
        assert result["env_runners"]["forks_per_question"] == 2
        assert np.isfinite(learned["policy_loss"]) and learned["grad_norm"] > 0
        assert learned["engine_logprob_gap"] < 1e-4

    weights, before = learner_weights(algorithm), weights_of(folder)
    for name in ("gate.weight", "experts.gate_up_proj", "experts.down_proj"):
        layer = f"model.layers.0.mlp.{name}"
        assert np.abs(weights[layer] - before[layer]).max() > 1e-4, name
    expected = learner_log_probs(algorithm)
    assert np.abs(expected - at_start).max() > 1e-2
    [after] = engine_log_probs(algorithm)
    np.testing.assert_allclose(after, expected, atol=1e-4)

    algorithm.save_model(tmp_path / "saved")
    algorithm.stop()
    assert (tmp_path / "saved/config.json").is_file()
    for name, array in weights_of(str(tmp_path / "saved")).items():
        np.testing.assert_array_equal(array, weights[name])
