"""A learner that is the only rank of a process group makes the update of one without; NCCL: tests/gpu."""

import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from torch.distributed.tensor import DTensor

from tests.learner import plain
from tests.learner.builders import assert_same_gradient
from tests.learner.ranks import Ranks


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_one_rank_makes_the_update_of_a_learner_alone(model_folder, sharding):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    expected = Ranks().gradients(model_folder, questions)
    assert_same_gradient(Ranks("gloo", sharding).gradients(model_folder, questions), expected)


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
