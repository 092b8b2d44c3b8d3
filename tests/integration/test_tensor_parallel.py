"""An env runner whose engine has two workers: its two GPUs come from Ray like any other resource."""

from __future__ import annotations

import os

import numpy as np
import pytest
import ray
from ray.rllib.env import multi_agent_env_runner

from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from tests.helpers.clusters import own_ray
from tests.helpers.configs import small_config
from tests.helpers.weights import engine_log_probs, learner_log_probs


class EnvRunnerWithoutCuda(ARPOEnvRunner):
    """RLlib looks for a CUDA device wherever an env runner has GPUs; this one's engine runs on the CPU."""

    def __init__(self, config, **kwargs):
        multi_agent_env_runner.get_device = lambda *_args: "cpu"
        super().__init__(config, **kwargs)


@pytest.fixture
def cluster_with_gpus():
    """Ray with two GPUs in its books, which nothing here touches."""
    with own_ray(num_cpus=2, num_gpus=2, log_to_driver=False):
        yield


@pytest.mark.slow
def test_an_env_runner_gets_its_gpus_and_its_engine_both_workers(cluster_with_gpus, model_folder):
    config = small_config(model_folder, engine="vllm", tensor_parallel_size=2, kv_cache_memory_bytes=16 << 20)
    config.env_runners(num_env_runners=1, num_gpus_per_env_runner=2, env_runner_cls=EnvRunnerWithoutCuda)
    algorithm = config.build_algo()
    try:
        assert ray.available_resources().get("GPU", 0) == 0
        (seen,) = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: (
                sorted(map(int, ray.get_gpu_ids())),
                os.environ["CUDA_VISIBLE_DEVICES"],
                [worker.proc.is_alive() for worker in runner.engine._llm.model_executor.workers],
            ),
            local_env_runner=False,
        )
        assert seen == ([0, 1], "0,1", [True, True])
        result = algorithm.train()
        assert result["learners"]["default_policy"]["engine_logprob_gap"] < 1e-4
        (log_probs,) = engine_log_probs(algorithm)
        np.testing.assert_allclose(log_probs, learner_log_probs(algorithm), atol=1e-4)
    finally:
        algorithm.stop()
