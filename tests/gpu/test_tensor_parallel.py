"""An engine on two CUDA devices computes the same as an engine on one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.conftest import reference, run_one
from tests.gpu.conftest import RUNNERS, start_engine
from tests.helpers.weights import weights_of

PROMPT = [10 + i % 40 for i in range(70)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("runner", RUNNERS)
def test_two_devices(runner, llama_folder, other_folder):
    engine = start_engine(llama_folder, runner, tensor_parallel_size=2, enforce_eager=True)
    for version, folder in ((0, llama_folder), (1, other_folder)):
        engine.update_weights(weights_of(folder).items(), version)
        finished = run_one(engine, PROMPT, max_tokens=20, temperature=0.7, seed=1, entropy_window=8)
        log_probs, entropies = reference(folder, PROMPT, finished.token_ids, 0.7)
        assert np.abs(finished.log_probs - log_probs).mean() < 2e-3
        assert np.abs(finished.entropies - entropies[:8]).mean() < 2e-3
    engine.close()
