"""vLLM's weight transfer on CUDA devices: "ipc" on a shared one, "nccl" between two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.configs import small_config
from tests.helpers.weights import engine_log_probs, learner_log_probs


@pytest.mark.parametrize("backend", ["ipc", "nccl"])
def test_engines_compute_with_the_learners_weights_after_every_update(ray_with_the_gpu, model_folder, backend):
    needed = 2 if backend == "nccl" else 1
    if torch.cuda.device_count() < needed:
        pytest.skip(f"needs {needed} CUDA devices; there are {torch.cuda.device_count()}")
    share = 1 if backend == "nccl" else 0.5
    config = small_config(model_folder, engine="vllm", gpu_memory_utilization=0.3, kv_cache_memory_bytes=256 << 20)
    config.language_model(weight_sync=backend)
    config.env_runners(num_env_runners=1, num_gpus_per_env_runner=share)
    config.learners(num_learners=1, num_gpus_per_learner=share)
    algorithm = config.build_algo()
    try:
        for version in range(3):
            assert algorithm._weight_version == version
            (computed,) = engine_log_probs(algorithm)
            np.testing.assert_allclose(computed, learner_log_probs(algorithm), atol=1e-3)
            algorithm.train()
    finally:
        algorithm.stop()
