"""Three learners make the update of one, whether each holds the model or all share it.

All tests use the same processes, since each learner takes seconds to start; the last test breaks one.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from torch import Tensor

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.learner import learner_group as learner_group_module
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.learner.learner_group import ARPOLearnerGroup
from rllib_arpo.learner.metrics import UPDATE_METRICS
from rllib_arpo.learner.sharding import NonFiniteLossError
from rllib_arpo.weights.snapshot import WeightSnapshot
from rllib_arpo.weights.weight_sync import put_snapshot
from tests.helpers.model_fixtures import keep_float64
from tests.helpers.models import tiny_model
from tests.learner import plain
from tests.learner.builders import (
    SPACES,
    assert_close,
    assert_same_gradient,
    make_batch,
    make_config,
    parameters,
    record_gradients,
    whole_parameters,
)

pytestmark = pytest.mark.slow

#: Metrics that must be those of the whole batch, however it was split; learners compute some of its tokens twice.
GLOBAL_METRICS = (
    *(metric.name for metric in UPDATE_METRICS if metric.name != "tokens_computed"),
    "num_module_steps_trained", "default_optimizer_learning_rate",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cluster(ray_cluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_float64(monkeypatch)
        yield


@pytest.fixture(scope="module")
def config(model) -> ARPOConfig:
    """Minibatches of 3, 3 and 1 questions: in the last one all learners but one have none.

    The passes are short, so that learners need different numbers of them. Advantages depend on the entropies of the
    whole minibatch, of which a learner sees its part.
    """
    config = make_config(
        model,
        questions_per_minibatch=3,
        lr=1e-3,
        kl_coeff=0.1,
        max_tokens_per_pass=150,
        entropy_advantage_coeff=0.5,
        keep_clipped_gradient=True,
    )
    return config.learners(num_cpus_per_learner=0.5)


@pytest.fixture(scope="module")
def questions() -> list[QuestionTree]:
    """Seven questions of very different size; one in which nothing counts, one with a single trajectory."""
    forked = [plain.random_question(seed, f"q{seed}", max_roots=1 + seed % 4) for seed in range(5)]
    masked = plain.random_question(6, "masked", masked_probability=1.0)
    alone = plain.random_question(7, "alone", max_roots=1, max_forks=0)
    return [forked[0], masked, *forked[1:4], alone, forked[4]]


@pytest.fixture(scope="module")
def group(config) -> Iterator[ARPOLearnerGroup]:
    for group in learner_group(config, 3):
        of_each_learner(group, lambda _learner: keep_float64(pytest.MonkeyPatch()))
        yield group


@pytest.fixture(scope="module")
def alone(config) -> Iterator[ARPOLearnerGroup]:
    """The learner in the driver's process."""
    yield from learner_group(config, 0)


def learner_group(config: ARPOConfig, num_learners: int) -> Iterator[ARPOLearnerGroup]:
    group = config.copy(copy_frozen=False).learners(num_learners=num_learners).build_learner_group(spaces=SPACES)
    yield group
    group.shutdown()


def of_each_learner(group: ARPOLearnerGroup, function: Callable) -> list:
    return [result.get() for result in group.foreach_learner(function)]


def rebuild(group: ARPOLearnerGroup, config: ARPOConfig, **settings: Any) -> None:
    """All learners begin anew with the configuration and other settings, in the same processes."""
    config = config.copy(copy_frozen=False).learners(num_learners=group.config.num_learners)
    group.config = config.update_from_dict(settings)

    def build_again(learner: ARPOTorchLearner) -> None:
        learner.config, learner._module_spec = config, config.get_multi_rl_module_spec(spaces=SPACES)
        for patched in ("postprocess_gradients", "_update_minibatch", "_accumulate_gradients"):
            vars(learner).pop(patched, None)
        learner._reset()
        learner._weights_seq_no = 0
        learner.build()

    of_each_learner(group, build_again)


def reduced(results: list[dict]) -> dict[str, float]:
    """The module's metrics, merged over the learners as `Algorithm` does it."""
    logger = MetricsLogger(root=True)
    logger.aggregate(results)
    return {name: logger.peek((DEFAULT_MODULE_ID, name)) for name in GLOBAL_METRICS}


def count_passes(learner: ARPOTorchLearner) -> None:
    """From now on `learner.num_passes` has, for each minibatch, the number of training passes."""
    learner.num_passes = []
    update_minibatch, accumulate = learner._update_minibatch, learner._accumulate_gradients

    def count_minibatch(*args):
        learner.num_passes.append(0)
        return update_minibatch(*args)

    def count_pass(*args):
        learner.num_passes[-1] += 1
        return accumulate(*args)

    learner._update_minibatch, learner._accumulate_gradients = count_minibatch, count_pass


@dataclass(frozen=True)
class Trained:
    """What one learner group did. Lists have an entry of each learner; where it has no weights, an empty one."""

    parameters: list[dict[str, Tensor]]
    metrics: dict[str, float]
    snapshot: WeightSnapshot
    state: dict[str, Any]
    num_passes: list[list[int]]
    gradients: list[list[dict[str, Tensor]]]


def train(group: ARPOLearnerGroup, config: ARPOConfig, questions: list[QuestionTree], sharding: str) -> Trained:
    """Five updates in fp64, then one in fp32 whose gradients are recorded."""
    rebuild(group, config, sharding=sharding)
    for first in range(5):
        results = group.update(training_data=make_batch(config, questions[first:] + questions[:first]))
    after = of_each_learner(group, whole_parameters)
    snapshot, state = ray.get(group.on_first(put_snapshot)).received(), group.get_state()
    # Adam's first steps depend on little more than the signs of the gradients: they would enlarge what rounding does.
    rebuild(group, config, sharding=sharding, dtype="float32", gradient_checkpointing=True, lr=1e-12)
    group.set_state({"learner": {"rl_module": state["learner"]["rl_module"]}})
    of_each_learner(group, record_gradients)
    of_each_learner(group, count_passes)
    group.update(training_data=make_batch(config, questions))
    num_passes = of_each_learner(group, lambda learner: learner.num_passes)
    gradients = of_each_learner(group, lambda learner: learner.recorded)
    return Trained(after, reduced(results), snapshot, state, num_passes, gradients)


@pytest.fixture(scope="module")
def local(alone, config, questions) -> Trained:
    return train(alone, config, questions, "none")


def assert_same(trained: Trained, local: Trained) -> None:
    for actual in filter(None, trained.parameters):
        assert_close(actual, local.parameters[0], rtol=1e-9)
    assert trained.metrics == pytest.approx(local.metrics, rel=1e-6)
    for steps in trained.gradients:
        for actual, expected in zip(steps, local.gradients[0], strict=True):
            if actual:
                assert_same_gradient(actual, expected)
    assert trained.snapshot.version == local.snapshot.version == 5
    np.testing.assert_allclose(trained.snapshot.probe_log_probs, local.snapshot.probe_log_probs, atol=1e-6)
    assert trained.snapshot.weights.keys() == local.snapshot.weights.keys()
    weights = {name: torch.tensor(array) for name, array in trained.snapshot.weights.items()}
    assert_close(weights, local.parameters[0], rtol=1e-9)


def test_the_updates_of_one_learner_do_something(model, local):
    initial = dict(plain.load(model).named_parameters())
    assert max((local.parameters[0][name] - p).abs().max().item() for name, p in initial.items()) > 1e-3
    assert len(local.gradients[0]) == 3


def test_replicas_make_the_same_updates(group, config, questions, local):
    replicas = train(group, config, questions, "none")
    assert_same(replicas, local)
    assert all(replicas.parameters)
    assert any(passes != replicas.num_passes[0] for passes in replicas.num_passes)
    check_that_a_failure_reaches_all(group, config, questions)

    def disturb_and_distribute(learner):
        module = learner.module[DEFAULT_MODULE_ID]
        with torch.no_grad():
            for p in module.parameters():
                p.add_(learner._learner_index)
        before = parameters(learner)
        learner._sharding.distribute(module)
        return before, parameters(learner)

    (first_before, first), (second_before, second), *_ = of_each_learner(group, disturb_and_distribute)
    assert_close(first, first_before, rtol=0.0)
    assert_close(second, first, rtol=0.0)
    with pytest.raises(AssertionError):
        assert_close(second_before, first, rtol=0.01)


def test_learners_that_share_the_model_make_the_same_updates(group, alone, config, questions, local):
    sharded = train(group, config, questions, "fsdp2")
    assert_same(sharded, local)
    assert [bool(held) for held in sharded.parameters] == [True, False, False]
    assert all(passes == sharded.num_passes[0] for passes in sharded.num_passes)
    check_that_a_failure_reaches_all(group, config, questions)

    def sizes(learner):
        module = learner.module[DEFAULT_MODULE_ID]
        held = sum(p.to_local().numel() for p in module.parameters())
        reference = sum(p.to_local().numel() for p in learner._reference.parameters())
        return held, reference, sum(p.numel() for p in module.parameters())

    held, reference, whole = zip(*of_each_learner(group, sizes), strict=True)
    assert sum(held) == sum(reference) == whole[0]
    assert max(held) < 1.1 * whole[0] / len(group)

    def sixth_update(of: ARPOLearnerGroup, state: dict[str, Any]) -> dict[str, Tensor]:
        """After five: weights, Adam's moments and its step count must all have come along."""
        rebuild(of, config)
        of.set_state(state)
        assert of.on_first(lambda learner: learner._weights_seq_no) == 5
        of.update(training_data=make_batch(config, questions))
        return of.on_first(whole_parameters)

    expected = sixth_update(alone, local.state)
    assert_close(sixth_update(alone, sharded.state), expected, rtol=1e-9)
    assert_close(sixth_update(group, local.state), expected, rtol=1e-9)


def check_that_a_failure_reaches_all(
    group: ARPOLearnerGroup, config: ARPOConfig, questions: list[QuestionTree]
) -> None:
    """One learner that raised alone would leave the others waiting for its gradients."""
    before = group.on_first(whole_parameters)
    broken = [questions[0], plain.with_nan_log_probs(questions[2])]
    with pytest.raises(NonFiniteLossError, match=r"questions \['q1'\]"):
        group.update(training_data=make_batch(config, broken))
    assert_close(group.on_first(whole_parameters), before, rtol=0.0)


def test_several_learners_train_the_same_adapter(group, alone, config, questions, tmp_path):
    """... also where FSDP2 cuts up base, adapter and reference; the reference scores before any training pass."""
    config = config.copy(copy_frozen=False).language_model(lora={"r": 2, "target_modules": "all-linear"})
    rebuild(alone, config)
    start = alone.get_state(components="learner/rl_module")

    def adapter_after_updates(group: ARPOLearnerGroup, **settings: Any) -> dict[str, Tensor]:
        rebuild(group, config, **settings)
        group.set_state(start)
        for first in range(3):
            group.update(training_data=make_batch(config, questions[first:] + questions[:first]))
        return group.on_first(whole_parameters)

    local = adapter_after_updates(alone)
    assert all(weight.any() for name, weight in local.items() if "lora_B" in name)
    assert_close(adapter_after_updates(group), local, rtol=1e-9)
    assert_close(adapter_after_updates(group, sharding="fsdp2"), local, rtol=1e-9)
    sent = ray.get(group.on_first(put_snapshot)).received().weights
    assert_close({name: torch.tensor(array) for name, array in sent.items()}, local, rtol=1e-9)
    path = group.save_to_path(str(tmp_path / "checkpoint"))
    rebuild(group, config, sharding="fsdp2", dtype="bfloat16")
    group.restore_from_path(path)
    assert_close(group.on_first(whole_parameters), {n: w.float() for n, w in local.items()}, rtol=1e-6)
    group.update(training_data=make_batch(config, questions))
    assert all(weight.isfinite().all() for weight in group.on_first(whole_parameters).values())


@pytest.mark.parametrize(("architecture", "part"), [
    ("qwen3_moe", "mlp.experts.down_proj"), ("qwen3_5_text", "linear_attn.conv1d.weight")
])  # fmt: skip
def test_learners_share_experts_and_layers_with_a_state(group, alone, config, questions, tmp_path, architecture, part):
    """FSDP2 cuts up the experts of a layer, which are one tensor; some have no token in a learner's pass."""
    folder = tiny_model(tmp_path / "model", architecture)
    config = config.copy(copy_frozen=False).language_model(model_name_or_path=folder, dtype="float32")

    def gradients(group: ARPOLearnerGroup, sharding: str) -> list[dict[str, Tensor]]:
        rebuild(group, config, sharding=sharding, lr=1e-12)
        of_each_learner(group, record_gradients)
        group.update(training_data=make_batch(config, questions[:6]))
        return of_each_learner(group, lambda learner: learner.recorded)[0]

    one, several = gradients(alone, "none"), gradients(group, "fsdp2")
    assert len(one) == len(several) == 2
    for expected, actual in zip(one, several, strict=True):
        assert_same_gradient(actual, expected)
        assert expected[f"model.layers.0.{part}"].any()


def test_a_checkpoint_is_whole(group, alone, config, questions, tmp_path):
    rebuild(group, config)
    group.update(training_data=make_batch(config, questions))
    expected = group.on_first(whole_parameters)
    path = group.save_to_path(str(tmp_path / "good"))
    rebuild(alone, config)
    alone.restore_from_path(path)
    assert_close(alone.on_first(whole_parameters), expected, rtol=0.0)
    state = group.get_state()
    module = state["learner"]["rl_module"][DEFAULT_MODULE_ID]
    module["model.norm.weight"] = module["model.norm.weight"][:-1]
    with pytest.raises(ValueError, match=r"model\.norm\.weight: \(63,\), expected: \(64,\)"):
        group.set_state(state)
    shutil.rmtree(Path(path, "learner/rl_module", DEFAULT_MODULE_ID, "huggingface"))
    with pytest.raises(RuntimeError, match=f"could not restore its state from {path}"):
        group.restore_from_path(path)


def test_one_learner_that_fails_alone_ends_the_update(group, config, questions, monkeypatch):
    """The last test of these learners: the others wait in a collective, and are ended."""

    def break_second(learner):
        if learner._learner_index == 1:
            learner._accumulate_gradients = lambda *_: [][1]

    monkeypatch.setattr(learner_group_module, "FAILURE_GRACE_S", 0.5)
    rebuild(group, config)
    of_each_learner(group, break_second)
    with pytest.raises(IndexError):
        group.update(training_data=make_batch(config, questions))
