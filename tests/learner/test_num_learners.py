"""No learner, one and two learners make the same update."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import ray
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.metrics import ALL_MODULES
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.tree import QuestionTree
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


@pytest.fixture
def learner_group() -> Iterator[Callable[[ARPOConfig, int], LearnerGroup]]:
    groups = []

    def build(config: ARPOConfig, num_learners: int) -> LearnerGroup:
        config = config.copy(copy_frozen=False).learners(num_learners=num_learners)
        groups.append(config.build_learner_group(spaces=SPACES))
        return groups[-1]

    yield build
    for group in groups:
        group.shutdown()


def of_each_learner(group: LearnerGroup, function: Callable) -> list:
    return [result.get() for result in group.foreach_learner(function)]


def reduced(results: list[dict]) -> dict[str, float]:
    """The module's metrics, merged over the learners as `Algorithm` does it."""
    logger = MetricsLogger(root=True)
    logger.aggregate(results)
    merged = logger.reduce()
    return {**merged[ALL_MODULES], **merged[DEFAULT_MODULE_ID]}


def test_gradients_and_metrics_in_fp32(model, questions, learner_group):
    # Minibatches of 3, 3 and 1 questions: in the last one the second of two learners has none.
    config = make_config(model, dtype="float32", questions_per_minibatch=3, lr=1e-3, kl_coeff=0.1)
    gradients, metrics = {}, {}
    for num_learners in (0, 1, 2):
        group = learner_group(config, num_learners)
        of_each_learner(group, record_gradients)
        metrics[num_learners] = reduced(group.update(training_data=make_batch(config, questions)))
        recorded = of_each_learner(group, lambda learner: learner.recorded)
        gradients[num_learners] = recorded[0]
        for other in recorded[1:]:
            for one_step, other_step in zip(recorded[0], other, strict=True):
                assert_close(other_step, one_step, rtol=0.0)

    assert len(gradients[0]) == 3
    for num_learners in (1, 2):
        for actual, expected in zip(gradients[num_learners], gradients[0], strict=True):
            assert_close(actual, expected, rtol=1e-5)
        expected = {name: metrics[0][name] for name in GLOBAL_METRICS}
        assert {name: metrics[num_learners][name] for name in GLOBAL_METRICS} == pytest.approx(expected, rel=1e-4)

    two_learners = group
    check_that_a_failure_reaches_both(config, questions, two_learners)
    check_that_learners_start_alike(two_learners)


def check_that_a_failure_reaches_both(config: ARPOConfig, questions: list[QuestionTree], group: LearnerGroup) -> None:
    """One learner that raised alone would leave the other waiting for its gradients."""
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


def test_parameters_after_five_updates_in_fp64(model, questions, learner_group):
    config = make_config(model, questions_per_minibatch=3, lr=1e-3)
    after = {}
    for num_learners in (0, 1, 2):
        group = learner_group(config, num_learners)
        for first in range(5):
            group.update(training_data=make_batch(config, questions[first:] + questions[:first]))
        after[num_learners] = of_each_learner(group, parameters)

    [expected] = after[0]
    for actual in (*after[1], *after[2]):
        assert_close(actual, expected, rtol=1e-9)
    initial = dict(plain.load(model).named_parameters())
    assert max((expected[name] - p).abs().max().item() for name, p in initial.items()) > 1e-3
