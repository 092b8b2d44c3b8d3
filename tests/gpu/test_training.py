"""The whole algorithm in bf16 on one GPU: iterations with forks and tool calls, a checkpoint, and its restoration."""

from __future__ import annotations

import numpy as np
from ray import tune

from rllib_arpo import ARPO
from tests.helpers.configs import small_config
from tests.helpers.parity_env import ParityEnv
from tests.helpers.weights import engine_log_probs, learner_log_probs, learner_weights

#: Differences of log-probs in bf16, nats: mean over an iteration's tokens, and mean over the probe's.
MEAN_GAP = 0.06


def gap(result: dict) -> float:
    return result["learners"]["default_policy"]["engine_logprob_gap"]


def probe_gap(algorithm) -> float:
    (computed,) = engine_log_probs(algorithm)
    return float(np.abs(computed - learner_log_probs(algorithm)).mean())


def test_iterations_in_bf16_and_a_checkpoint(ray_with_the_gpu, model_folder, tmp_path):
    tune.register_env("Parity-v0", ParityEnv)
    config = small_config(model_folder, engine="vllm", gpu_memory_utilization=0.3, kv_cache_memory_bytes=256 << 20)
    config.environment("Parity-v0").language_model(dtype="bfloat16", sleep_level=2)
    config.adaptive_rollout(branching="always").training(lr=1e-3, questions_per_minibatch=1)
    config.env_runners(num_env_runners=1, num_gpus_per_env_runner=0.5)
    config.learners(num_learners=0, num_gpus_per_learner=0.5)
    algorithm = config.build_algo()
    try:
        before = learner_weights(algorithm)
        for _ in range(3):
            result = algorithm.train()
            assert gap(result) < MEAN_GAP
            assert result["env_runners"]["forks_per_question"] == 2
        weights = learner_weights(algorithm)
        assert max(np.abs(weights[name] - value).max() for name, value in before.items()) > 1e-3
        assert probe_gap(algorithm) < MEAN_GAP
        path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    finally:
        algorithm.stop()

    restored = ARPO.from_checkpoint(path)
    try:
        for name, value in learner_weights(restored).items():
            np.testing.assert_array_equal(value, weights[name])
        assert probe_gap(restored) < MEAN_GAP
        assert gap(restored.train()) < MEAN_GAP
        assert restored.iteration == 4
    finally:
        restored.stop()
