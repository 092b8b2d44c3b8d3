"""The learner on a CUDA device: the same update as on the CPU, and Adam's state out of the way."""

from __future__ import annotations

import pytest
import torch

from tests.learner import plain
from tests.learner.builders import build_learner, make_batch, make_config, parameters, record_gradients


@pytest.fixture
def questions():
    return [plain.random_question(seed, f"q{seed}") for seed in range(4)]


def on_gpu(config):
    return config.copy(copy_frozen=False).learners(num_learners=0, num_gpus_per_learner=1)


def test_gradients_equal_those_of_the_cpu(model_folder, questions):
    config = make_config(model_folder, dtype="float32", questions_per_minibatch=4)
    recorded = []
    for variant in (config, on_gpu(config)):
        learner = build_learner(variant)
        record_gradients(learner)
        learner.update(make_batch(variant, questions))
        recorded.append({name: gradient.cpu() for name, gradient in learner.recorded[0].items()})
    scale = max(gradient.norm() for gradient in recorded[0].values())
    for name, gradient in recorded[0].items():
        assert (recorded[1][name] - gradient).norm() < 5e-3 * scale, name  # TF32


@pytest.mark.parametrize("offload", [False, True])
def test_offloaded_states_are_on_the_cpu_between_steps(model_folder, questions, offload):
    config = on_gpu(make_config(model_folder, dtype="float32", optimizer_offload=offload))
    learner = build_learner(config)
    for _ in range(2):
        learner.update(make_batch(config, questions))
    [optimizer] = learner._named_optimizers.values()
    devices = {state["exp_avg"].device.type for state in optimizer.state.values()}
    assert devices == {"cpu" if offload else "cuda"}
    assert {p.device.type for p in parameters(learner).values()} == {"cuda"}
    assert all(torch.isfinite(p).all() for p in parameters(learner).values())
