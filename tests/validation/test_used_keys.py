"""Keys of RLlib that are used: each of them changes something that can be seen from outside."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from ray.air._internal import torch_utils
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch import torch_learner
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils import actor_manager, framework
from ray.rllib.utils.actor_manager import FaultAwareApply
from ray.rllib.utils.metrics.stats import MeanStats

from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.learner.training_data import PlanSettings, QuestionBatch
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.rollout import dispatch
from rllib_arpo.rollout.dispatch import DispatchSettings, QuestionDispatcher
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.rollout.episodes import tree_to_episode
from rllib_arpo.rollout.make_env import make_env
from rllib_arpo.rollout.messages import Purpose
from rllib_arpo.rollout.settings import RolloutSettings
from tests.helpers.configs import small_config
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.learner.builders import SPACES

#: key -> another value, what else is set, and the bundles that Tune then asks for (Ray leaves out what is 0).
MAIN, RUNNER, LEARNER = {"CPU": 1.0}, {"CPU": 0.5}, {"CPU": 0.5}
PLACEMENT = {
    "num_cpus_for_main_process": (3, {}, [{"CPU": 3.0}]),
    "custom_resources_for_main_process": ({"disk": 2}, {}, [{"CPU": 1.0, "disk": 2.0}]),
    "num_env_runners": (2, {}, [MAIN, RUNNER, RUNNER]),
    "num_cpus_per_env_runner": (2, {"num_env_runners": 1}, [MAIN, {"CPU": 2.0}]),
    "num_gpus_per_env_runner": (0.5, {"num_env_runners": 1}, [MAIN, {"CPU": 0.5, "GPU": 0.5}]),
    "custom_resources_per_env_runner": ({"tool": 1}, {"num_env_runners": 1}, [MAIN, {"CPU": 0.5, "tool": 1.0}]),
    "evaluation_num_env_runners": (1, {}, [MAIN, RUNNER]),
    "num_learners": (2, {}, [MAIN, LEARNER, LEARNER]),
    "num_cpus_per_learner": (2, {"num_learners": 1}, [MAIN, {"CPU": 2.0}]),
    "num_gpus_per_learner": (1, {"num_learners": 1}, [MAIN, {"CPU": 0.5, "GPU": 1.0}]),
    "custom_resources_per_learner": ({"fast": 1}, {"num_learners": 1}, [MAIN, {"CPU": 0.5, "fast": 1.0}]),
}


@pytest.mark.parametrize("key", PLACEMENT)
def test_tune_is_asked_for_what_the_actors_need(model_folder, unknown_cluster, key):
    value, others, expected = PLACEMENT[key]
    config = small_config(model_folder)
    unchanged = config.copy().update_from_dict(others)
    changed = config.copy().update_from_dict(others | {key: value})
    assert ARPO.default_resource_request(changed).bundles == expected
    assert ARPO.default_resource_request(unchanged).bundles != expected


def test_placement_strategy(model_folder):
    config = small_config(model_folder).resources(placement_strategy="SPREAD")
    assert ARPO.default_resource_request(config).strategy == "SPREAD"


class Moved(Exception):
    """The module was about to be moved to this device, which this machine lacks."""


@pytest.mark.parametrize("index", [0, 1])
def test_the_learner_moves_its_module_to_local_gpu_idx(model_folder, monkeypatch, index):
    two_gpus = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 2), device=partial(torch.device, "cuda"))

    def get_device(config, num_gpus):
        with monkeypatch.context() as faked:
            faked.setattr(torch_utils, "get_devices", list)
            faked.setattr(framework, "try_import_torch", lambda: (two_gpus, None))
            return framework.get_device(config, num_gpus)

    def to(_module, device):
        raise Moved(device)

    monkeypatch.setattr(torch_learner, "get_device", get_device)
    monkeypatch.setattr(LLMRLModule, "to", to)
    config = small_config(model_folder).learners(num_gpus_per_learner=1, local_gpu_idx=index)
    with pytest.raises(Moved) as moved:
        config.build_learner(spaces=SPACES)
    assert moved.value.args == (torch.device("cuda", index),)


def test_env_and_env_config(model_folder):
    config = small_config(model_folder)
    configs = [
        config,
        config.copy().environment(env_config={"split": "test"}),
        config.copy().environment("Catalogue-v0"),
    ]
    prompts = [make_env(config).reset()[0]["0"] for config in configs]
    assert len(set(map(tuple, prompts))) == 3


def test_who_switches_validation_off_gets_none():
    with pytest.raises(ValueError, match="model_name_or_path is required"):
        ARPOConfig().validate()
    ARPOConfig().experimental(_validate_config=False).validate()


def three_questions() -> list:
    trajectories = [make_trajectory(str(i), [make_turn([7])], reward=float(i)) for i in range(2)]
    return [tree_to_episode(make_tree([1, 2], trajectories, name)) for name in "abc"]


def test_num_epochs_and_the_order_of_each():
    def plan(**training) -> list[tuple[int, ...]]:
        config = ARPOConfig().training(questions_per_minibatch=3, **training)
        batch = QuestionBatch.plan(three_questions(), PlanSettings.from_config(config), seed=1)
        return [minibatch.questions for minibatch in batch.minibatches]

    assert plan(num_epochs=3) == [(0, 1, 2)] * 3
    shuffled = plan(num_epochs=3, shuffle_batch_per_epoch=True)
    assert {tuple(sorted(order)) for order in shuffled} == {(0, 1, 2)}
    assert len(set(shuffled)) > 1


def test_seed(model_folder):
    config = small_config(model_folder).debugging(seed=7)
    assert RolloutSettings.from_config(config, explore=True).seed == 7


def learner(model_folder: str, **training) -> ARPOTorchLearner:
    config = small_config(model_folder).training(**training)
    return config.build_learner(spaces=SPACES)


def learning_rates(built: ARPOTorchLearner, timesteps: list[int]) -> list[float]:
    """After each of some updates on three questions."""
    data = QuestionBatch.plan(three_questions(), PlanSettings.from_config(built.config))
    rates = []
    for step in timesteps:
        metrics = built.update(data, timesteps={"num_env_steps_sampled_lifetime": step})
        rates.append(float(metrics[DEFAULT_MODULE_ID]["default_optimizer_learning_rate"].peek()))
    return rates


def test_lr_may_be_a_number_or_a_schedule(model_folder):
    assert learning_rates(learner(model_folder, lr=1e-3), [0, 50]) == pytest.approx([1e-3, 1e-3])
    schedule = [[0, 1e-3], [100, 0.0]]
    assert learning_rates(learner(model_folder, lr=schedule), [0, 50]) == pytest.approx([1e-3, 5e-4])


def test_torchs_own_schedulers(model_folder):
    config = small_config(model_folder).training(lr=1e-3)
    config.experimental(
        _torch_lr_scheduler_classes=[lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
    )
    assert learning_rates(config.build_learner(spaces=SPACES), [0, 0]) == pytest.approx([5e-4, 2.5e-4])


def clipped(built: ARPOTorchLearner) -> torch.Tensor:
    """What is left of the first parameter's gradient, [3, 4, 0, 0, ...]; those of all others are 0."""
    gradients = {name: torch.zeros_like(parameter) for name, parameter in built._params.items()}
    first = next(iter(gradients.values())).view(-1)
    first[:2] = torch.tensor([3.0, 4.0])
    return next(iter(built.postprocess_gradients(gradients).values())).view(-1)[:2]


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"grad_clip": None}, [3.0, 4.0]),
        ({"grad_clip": 1.0}, [0.6, 0.8]),
        ({"grad_clip": 2.5}, [1.5, 2.0]),
        ({"grad_clip": 1.0, "grad_clip_by": "value"}, [1.0, 1.0]),
    ],
)
def test_grad_clip_and_what_it_bounds(model_folder, training, expected):
    torch.testing.assert_close(clipped(learner(model_folder, **training)), torch.tensor(expected))


@pytest.mark.parametrize("log_gradients", [True, False])
def test_log_gradients(model_folder, log_gradients):
    config = small_config(model_folder).training(grad_clip_by="value").reporting(log_gradients=log_gradients)
    built = config.build_learner(spaces=SPACES)
    clipped(built)
    assert ("gradients_default_optimizer_global_norm" in built.metrics.reduce().get(DEFAULT_MODULE_ID, {})) == (
        log_gradients
    )


@pytest.fixture
def group(ray_cluster, model_folder, monkeypatch):
    """`group(**keys)` -> RLlib's group of env runners, without any that runs."""

    def build(**keys) -> EnvRunnerGroup:
        monkeypatch.setattr(
            EnvRunnerGroup, "add_workers", lambda self, count, validate: setattr(self, "made", (count, validate))
        )
        config = small_config(model_folder).env_runners(num_env_runners=2).update_from_dict(keys)
        return EnvRunnerGroup(config=config, local_env_runner=False)

    return build


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 1000),
        ({"max_num_env_runner_restarts": 7}, 7),
        ({"restart_failed_env_runners": False}, 0),
    ],
)
def test_how_often_ray_restarts_an_env_runner(group, keys, expected):
    assert group(**keys)._remote_args["max_restarts"] == expected


@pytest.mark.parametrize("validate", [True, False])
def test_validate_env_runners_after_construction(group, validate):
    assert group(validate_env_runners_after_construction=validate).made == (2, validate)


def test_env_runner_health_probe_timeout_s(group):
    asked = []
    env_runners = group(env_runner_health_probe_timeout_s=3.0)
    env_runners._worker_manager.probe_unhealthy_actors = lambda **kwargs: asked.append(kwargs)
    env_runners.probe_unhealthy_env_runners()
    assert asked == [{"timeout_seconds": 3.0, "mark_healthy": True}]


def test_delay_between_env_runner_restarts_s(monkeypatch):
    slept = []
    monkeypatch.setattr(actor_manager.time, "sleep", slept.append)
    runner = FaultAwareApply()
    runner.config = ARPOConfig().fault_tolerance(delay_between_env_runner_restarts_s=9.0)
    with pytest.raises(SystemExit):
        runner.apply(lambda _runner: 1 / 0)
    assert slept == [9.0]


def test_env_runner_restore_timeout_s(monkeypatch):
    """The clock of a driver that waits in vain for its only env runner."""
    clock = [0.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(dispatch.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    config = ARPOConfig().fault_tolerance(env_runner_restore_timeout_s=5.0)
    manager = SimpleNamespace(actors=lambda: {1: None})
    nobody = SimpleNamespace(healthy_env_runner_ids=list, _worker_manager=manager)
    dispatcher = QuestionDispatcher(nobody, DispatchSettings.from_configs(config, None), lambda: None)
    with pytest.raises(RuntimeError, match="does not come back; 0 questions are missing"):
        dispatcher._wait_for_env_runners("it died")
    assert clock == [6.0]


class OwnARPO(ARPO):
    """An algorithm of a user's own."""


class OwnEnvRunner(ARPOEnvRunner):
    """An env runner of a user's own."""


class OwnLearner(ARPOTorchLearner):
    """A learner of a user's own."""


class OwnCallback(RLlibCallback):
    """Counts its instances' iterations."""

    def on_train_result(self, *, result, **_kwargs):
        result["of_own_callback"] = True


class OwnMean(MeanStats):
    """A mean of a user's own."""


class OwnPiece(ConnectorV2):
    """Counts the batches it has seen."""

    batches = 0

    def __call__(self, *, batch, **_kwargs):
        OwnPiece.batches += 1
        return batch


CALLED = ("algorithm_init", "environment_created", "episode_end", "sample_end", "evaluate_start", "evaluate_end",
          "train_result", "checkpoint_loaded")  # fmt: skip


@pytest.fixture(scope="module")
def run(ray_cluster, model_folder, tmp_path_factory):
    """One iteration with much set, restored from its checkpoint: (algorithm, result, calls, level of RLlib's log)."""
    calls = dict.fromkeys(CALLED, 0)

    def count(name):
        return lambda **_kwargs: calls.__setitem__(name, calls[name] + 1)

    config = small_config(model_folder, config=ARPOConfig(algo_class=OwnARPO))
    config.env_runners(env_runner_cls=OwnEnvRunner, num_envs_per_env_runner=3)
    config.learners(learner_connector=lambda *_spaces: OwnPiece()).training(learner_class=OwnLearner)
    config.callbacks(OwnCallback, **{f"on_{name}": count(name) for name in CALLED})
    config.evaluation(evaluation_interval=1, evaluation_duration=2)
    config.debugging(log_level="CRITICAL", log_sys_usage=False)
    config.stats_cls_lookup = {**config.stats_cls_lookup, "mean": OwnMean}
    algorithm = config.build_algo()
    log_level = logging.getLogger("ray.rllib").level
    result = algorithm.train()
    algorithm.restore(algorithm.save(str(tmp_path_factory.mktemp("checkpoint"))))
    yield SimpleNamespace(algorithm=algorithm, result=result, calls=calls, log_level=log_level)
    algorithm.stop()


def test_every_function_is_called_back(run):
    # How often answers are handed over depends on time.
    assert run.calls.pop("sample_end") in (2, 3, 4)
    assert run.calls == {
        "algorithm_init": 1,
        "environment_created": 6,
        "episode_end": 4,  # Two questions of training, two of evaluation.
        "evaluate_start": 1,
        "evaluate_end": 1,
        "train_result": 1,
        "checkpoint_loaded": 1,
    }


@pytest.fixture(scope="module")
def plain(ray_cluster, model_folder):
    """One iteration with other values of what `run` sets for reports: (result, level of RLlib's log)."""
    config = small_config(model_folder).evaluation(evaluation_interval=None).debugging(log_sys_usage=True)
    algorithm = config.build_algo()
    yield SimpleNamespace(result=algorithm.train(), log_level=logging.getLogger("ray.rllib").level)
    algorithm.stop()


def test_classes_of_ones_own(run):
    runner = run.algorithm.env_runner_group.local_env_runner
    assert (type(run.algorithm), type(runner)) == (OwnARPO, OwnEnvRunner)
    assert type(run.algorithm.learner_group._learner) is OwnLearner
    assert run.result["of_own_callback"]
    assert OwnPiece.batches == 1


def test_num_envs_per_env_runner(run):
    runner = run.algorithm.env_runner_group.local_env_runner
    assert len(runner._envs[Purpose.TRAINING]) == 3


def test_evaluation_interval_and_duration(run, plain):
    assert run.result["evaluation"]["env_runners"]["num_episodes"] == 2
    assert "evaluation" not in plain.result


def test_stats_cls_lookup(run):
    assert run.algorithm.metrics.stats_cls_lookup["mean"] is OwnMean


def test_log_level(run, plain):
    assert (run.log_level, plain.log_level) == (logging.CRITICAL, logging.ERROR)


def test_log_sys_usage(run, plain):
    """RLlib's default is True."""
    assert "perf" not in run.result
    assert plain.result["perf"]["cpu_util_percent"] >= 0
