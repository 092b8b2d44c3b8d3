"""No learner, one and two learners make the same update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import ray
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from torch import Tensor

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.learner.gradients import NonFiniteLossError
from tests.helpers.models import tiny_model
from tests.learner import plain
from tests.learner.builders import SPACES, assert_close, make_batch, make_config, parameters, record_gradients

#: Metrics that must be those of the whole batch, however it was split.
GLOBAL_METRICS = (
    "policy_loss",
    "grad_norm",
    "entropy",
    "ratio_mean",
    "kl",
    "clip_fraction",
    "engine_logprob_gap",
    "tokens_unique",
    "tokens_flat",
    "groups_without_signal",
    "num_questions_trained",
    "num_module_steps_trained",
    "default_optimizer_learning_rate",
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"), num_layers=1)


@pytest.fixture(scope="module")
def questions() -> list[QuestionTree]:
    """Seven questions of very different size; one in which nothing counts, one with a single trajectory."""
    forked = [plain.random_question(seed, f"q{seed}", max_roots=1 + seed % 4) for seed in range(5)]
    masked = plain.random_question(6, "masked", masked_probability=1.0)
    alone = plain.random_question(7, "alone", max_roots=1, max_forks=0)
    return [forked[0], masked, *forked[1:4], alone, forked[4]]


@contextmanager
def learner_group(config: ARPOConfig, num_learners: int) -> Iterator[LearnerGroup]:
    """A group that is shut down in the end: the next one needs its CPUs."""
    config = config.copy(copy_frozen=False).learners(num_learners=num_learners)
    group = config.build_learner_group(spaces=SPACES)
    try:
        yield group
    finally:
        group.shutdown()


def of_each_learner(group: LearnerGroup, function: Callable) -> list:
    return [result.get() for result in group.foreach_learner(function)]


def reduced(results: list[dict]) -> dict[str, float]:
    """The module's metrics, merged over the learners as `Algorithm` does it."""
    logger = MetricsLogger(root=True)
    logger.aggregate(results)
    return {name: logger.peek((DEFAULT_MODULE_ID, name)) for name in GLOBAL_METRICS}


def to_float32(learner: ARPOTorchLearner) -> None:
    """Goes on in fp32 with a fresh optimizer: cheaper than new learners."""
    for module in (learner.module[DEFAULT_MODULE_ID], learner._reference):
        module.causal_lm.float()
        module._dtype = torch.float32
    for optimizer in learner._optimizer_parameters:
        optimizer.state.clear()


@dataclass(frozen=True)
class Trained:
    """What one learner group did: each entry of the lists is from one learner."""

    parameters: list[dict[str, Tensor]]
    metrics: dict[str, float]
    gradients: list[list[dict[str, Tensor]]]


def train(config: ARPOConfig, questions: list[QuestionTree], num_learners: int) -> Trained:
    """Five updates in fp64, then one in fp32 whose gradients are recorded."""
    with learner_group(config, num_learners) as group:
        for first in range(5):
            results = group.update(training_data=make_batch(config, questions[first:] + questions[:first]))
        after = of_each_learner(group, parameters)
        of_each_learner(group, to_float32)
        of_each_learner(group, record_gradients)
        group.update(training_data=make_batch(config, questions))
        gradients = of_each_learner(group, lambda learner: learner.recorded)
        if num_learners == 2:
            check_that_learners_start_alike(group)
            check_that_a_failure_reaches_both(config, questions, group)
    return Trained(after, reduced(results), gradients)


def test_zero_one_and_two_learners_make_the_same_update(model, questions):
    # Minibatches of 3, 3 and 1 questions: in the last one the second of two learners has none.
    config = make_config(model, questions_per_minibatch=3, lr=1e-3, kl_coeff=0.1)
    local, *remote = [train(config, questions, num_learners) for num_learners in (0, 1, 2)]

    initial = dict(plain.load(model).named_parameters())
    assert max((local.parameters[0][name] - p).abs().max().item() for name, p in initial.items()) > 1e-3
    assert len(local.gradients[0]) == 3
    for other in remote:
        for actual in other.parameters:
            assert_close(actual, local.parameters[0], rtol=1e-9)
        for steps in other.gradients:
            for actual, expected in zip(steps, local.gradients[0], strict=True):
                assert_close(actual, expected, rtol=1e-5)
        assert other.metrics == pytest.approx(local.metrics, rel=1e-6)


def check_that_a_failure_reaches_both(config: ARPOConfig, questions: list[QuestionTree], group: LearnerGroup) -> None:
    """One learner that raised alone would leave the other waiting for its gradients. RLlib then gives both up."""
    broken = [questions[0], plain.with_nan_log_probs(questions[2])]
    with pytest.raises(NonFiniteLossError, match=r"questions \['q1'\]"):
        group.update(training_data=make_batch(config, broken))


def check_that_learners_start_alike(group: LearnerGroup) -> None:
    def disturb_and_wrap(learner):
        with torch.no_grad():
            for p in learner.module[DEFAULT_MODULE_ID].parameters():
                p.add_(learner._learner_index)
        before = parameters(learner)
        learner._make_modules_ddp_if_necessary()
        return before, parameters(learner)

    [(first_before, first), (second_before, second)] = of_each_learner(group, disturb_and_wrap)
    assert_close(first, first_before, rtol=0.0)
    assert_close(second, first, rtol=0.0)
    with pytest.raises(AssertionError):
        assert_close(second_before, first, rtol=0.01)
