"""Learners in a process group, mostly of one rank, make the update of one without; NCCL: tests/gpu."""

import pytest
import torch
import torch.distributed as dist
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from torch.distributed.tensor import DTensor

from rllib_arpo.learner.sharding import refuse_shared_gpus
from tests.learner import plain
from tests.learner.builders import (
    assert_close,
    assert_same_gradient,
    build_learner,
    make_batch,
    make_config,
    whole_parameters,
)
from tests.learner.ranks import Ranks, free_port


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_one_rank_makes_the_update_of_a_learner_alone(model_folder, sharding):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    expected = Ranks().gradients(model_folder, questions)
    assert_same_gradient(Ranks("gloo", sharding).gradients(model_folder, questions), expected)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_only_the_first_rank_reads_the_model(model_folder, sharding):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    expected = Ranks().gradients(model_folder, questions)
    assert_same_gradient(Ranks("gloo", sharding, num_ranks=2).gradients(model_folder, questions), expected)


def test_in_bf16_layers_are_sent_in_bf16_and_gradients_summed_in_fp32(model_folder):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    exact = Ranks().gradients(model_folder, questions)
    plainly, sharded = (
        Ranks(*spread, dtype="bfloat16").gradients(model_folder, questions) for spread in ((), ("gloo", "fsdp2"))
    )
    assert {gradient.dtype for gradient in sharded.values()} == {torch.float32}

    def error(gradients):
        return sum((gradients[name] - exact[name]).square().sum() for name in exact).sqrt()

    assert 0 < error(sharded) < 1.5 * error(plainly)


def test_split_moments_in_the_memory_of_the_cpu(model_folder):
    """Two updates, between which the optimizer's state goes out and in again; tests/gpu has pinned memory."""
    questions, weights = [plain.random_question(seed, f"q{seed}") for seed in range(3)], []
    with Ranks("gloo").process_group(0, free_port()):
        for offload in (False, True):
            config = make_config(model_folder, "float32", sharding="fsdp2", optimizer_offload=offload)
            config.learners(num_learners=2)
            learner = build_learner(config)
            learner.update(make_batch(config, questions))
            learner._set_optimizer_state(learner._get_optimizer_state())
            moments = [state["exp_avg"] for state in learner.get_optimizer().state.values()]
            assert {isinstance(moment, DTensor) for moment in moments} == {not offload}
            learner.update(make_batch(config, questions))
            weights.append(whole_parameters(learner))
    assert_close(*weights, rtol=0.0)


def test_no_metric_is_split_among_learners(model_folder, monkeypatch):
    """RLlib averages metrics, which torch 2.11 cannot do with DTensors."""
    logged, log_value = [], MetricsLogger.log_value

    def record(self, key, value, **settings):
        logged.append(value)
        log_value(self, key, value, **settings)

    monkeypatch.setattr(MetricsLogger, "log_value", record)
    Ranks("gloo", "fsdp2").gradients(model_folder, [plain.random_question(0, "q0")])
    assert logged
    assert not [value for value in logged if isinstance(value, DTensor)]


def test_two_learners_on_one_gpu_are_named():
    store = dist.HashStore()
    for rank, gpu in enumerate(("a", "b", "c")):
        store.set(f"gpu/{rank}", gpu)
    refuse_shared_gpus("b", store, 1, 3)
    with pytest.raises(ValueError) as raised:
        refuse_shared_gpus("c", store, 1, 3)
    assert str(raised.value) == (
        "Learners 1 and 2 have the same GPU, c, which NCCL refuses; to share GPUs in pairs set "
        "num_gpus_per_env_runner=0.9 and num_gpus_per_learner=0.1, with at least as many env runners as learners."
    )
