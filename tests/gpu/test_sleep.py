"""Sleep on a CUDA device: the memory is given back, and the engine goes on with the weights it should have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rllib_arpo.engine.engine import NO_WEIGHTS
from tests.engine.conftest import run_one
from tests.gpu.conftest import RUNNERS, start_engine
from tests.helpers.configs import small_config
from tests.helpers.weights import weights_of

PROMPT = [10 + i % 40 for i in range(70)]


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_engine_sleeps_and_goes_on(runner, llama_folder, other_folder):
    engine = start_engine(llama_folder, runner, can_sleep=True, kv_cache_memory_bytes=1 << 30)
    before = run_one(engine, PROMPT, max_tokens=8, temperature=0.0, entropy_window=4)
    for level in (1, 2):
        free = torch.cuda.mem_get_info()[0]
        engine.sleep(level)
        assert torch.cuda.mem_get_info()[0] - free > 0.9 * (1 << 30)
        with pytest.raises(RuntimeError, match="The engine sleeps"):
            run_one(engine, PROMPT)
        engine.wake_up()
        if level == 2:
            assert engine.weight_version == NO_WEIGHTS
            engine.update_weights(weights_of(llama_folder).items(), version=3)
        after = run_one(engine, PROMPT, max_tokens=8, temperature=0.0, entropy_window=4)
        assert after.token_ids.tolist() == before.token_ids.tolist()
        assert after.num_cached_tokens == 0
        np.testing.assert_allclose(after.log_probs, before.log_probs, atol=1e-4)
        np.testing.assert_allclose(after.entropies, before.entropies, atol=1e-4)
    engine.close()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_engine_and_learner_share_one_gpu(ray_with_the_gpu, model_folder, level):
    config = small_config(model_folder, engine="vllm", gpu_memory_utilization=0.3, kv_cache_memory_bytes=256 << 20)
    config.language_model(sleep_level=level)
    config.env_runners(num_env_runners=1, num_gpus_per_env_runner=0.5)
    config.learners(num_learners=1, num_gpus_per_learner=0.5)
    algorithm = config.build_algo()
    try:
        for _ in range(2):
            result = algorithm.train()
            assert result["learners"]["default_policy"]["engine_logprob_gap"] < 5e-3
    finally:
        algorithm.stop()
