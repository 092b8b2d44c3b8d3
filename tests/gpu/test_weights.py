"""New weights of an engine, by each transport: that it has them, and the seconds for a 0.5B model."""

import numpy as np
import pytest
import torch

from release.benchmarks.common.bench import median, rounded, timed
from rllib_arpo.engine.vllm_versions import FIRST_WITH_TRANSFER, vllm_version
from rllib_arpo.weights import WEIGHT_SYNCS, transfer_backend
from tests.gpu.workbench import random_qwen3
from tests.helpers.configs import small_config
from tests.helpers.weights import engine_log_probs, learner_log_probs

TARGET_S = 1.0
#: Transport -> the number of GPUs that it needs, and the part of one that the learner and the engine have.
GPUS = {"in_process_reload": (1, 0.5), "ipc": (1, 0.5), "nccl": (2, 1)}


@pytest.fixture(params=GPUS)
def transport(request) -> str:
    """The name of a transport that runs on this machine."""
    transport = request.param
    installed, needed = vllm_version(), GPUS[transport][0]
    if transfer_backend(transport) and installed and installed < FIRST_WITH_TRANSFER:
        pytest.skip(f"{transport!r} needs vLLM {FIRST_WITH_TRANSFER} or newer, and {installed} is installed")
    if transfer_backend(transport) and torch.cuda.device_count() < needed:
        pytest.skip(f"{transport!r} needs {needed} CUDA devices; there are {torch.cuda.device_count()}")
    return transport


def test_seconds_of_a_push(transport, own_ray, sizes, work, figures):
    """Learner and engine in a process each, on a GPU they share or on two; on a CPU both are in this process."""
    on_gpu = torch.cuda.is_available()
    remote, share = int(on_gpu), GPUS[transport][1] * on_gpu
    config = sizes.config(random_qwen3(sizes.small, work)).language_model(weight_sync=transport)
    config.env_runners(num_env_runners=remote, num_gpus_per_env_runner=share)
    config.learners(num_learners=remote, num_gpus_per_learner=share)
    algorithm = config.build_algo()
    try:
        sync = WEIGHT_SYNCS[transport](algorithm.learner_group)

        def push() -> float:
            algorithm.learner_group.foreach_learner(count_as_new)
            return timed(sync.push, algorithm.env_runner_group)[0]

        seconds = [push() for _ in range(sizes.repeats + 1)][1:]
    finally:
        algorithm.stop()
    detail = {"seconds": rounded(seconds), "processes": 1 + 2 * remote}
    figures.add("seconds of a push", median(seconds), "s", at_most=TARGET_S, is_speed=True, detail=detail)


def count_as_new(learner, **_kwargs: object) -> None:
    """Makes the weights count as new ones."""
    learner._weight_version += 1


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("transport", ["ipc", "nccl"], indirect=True)
def test_engines_compute_with_the_learners_weights_after_every_update(transport, lag, own_ray, model_folder):
    share = GPUS[transport][1]
    config = small_config(model_folder, engine="vllm", gpu_memory_utilization=0.3, kv_cache_memory_bytes=256 << 20)
    config.environment("Parity-v0", env_config={"num_turns": 2})
    config.env_runners(num_env_runners=1, num_gpus_per_env_runner=share)
    config.learners(num_learners=1, num_gpus_per_learner=share).adaptive_rollout(max_weight_lag=lag)
    algorithm = config.build_algo()
    try:
        assert algorithm.config.weight_sync == transport  # Of "auto".
        for version in range(3):
            assert algorithm._weight_version == version
            (computed,) = engine_log_probs(algorithm)
            np.testing.assert_allclose(computed, learner_log_probs(algorithm), atol=1e-3)
            algorithm.train()
    finally:
        algorithm.stop()
