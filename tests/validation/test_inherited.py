"""Every key of RLlib has a verdict, and the verdict is kept: nothing that a user sets is ignored in silence."""

from __future__ import annotations

from functools import partial

import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.policy.policy import PolicySpec

from rllib_arpo import ARPOConfig
from rllib_arpo.options.rules import shown
from rllib_arpo.validation.inherited import INHERITED, KEYWORDS
from rllib_arpo.validation.verdicts import Harmless, Refused, Used
from tests.helpers.configs import small_config
from tests.validation.sentences import message

REFUSED = [key for key, verdict in INHERITED.items() if isinstance(verdict, Refused)]
HARMLESS = [key for key, verdict in INHERITED.items() if isinstance(verdict, Harmless)]
RULED = [key for key, verdict in INHERITED.items() if isinstance(verdict, Used) and verdict.rule]
NAN = float("nan")
LR = "must be a finite number > 0, or a schedule [[0, lr], [timestep, lr], ...] of numbers >= 0 at growing timesteps."
NO_OFFLINE_DATA = "episodes are neither recorded nor read, and there is no offline evaluation."
ONE_POLICY = "one model, that of language_model(), plays every trajectory and is trained."


def test_the_table_has_every_key_of_rllib_and_no_other():
    """A key that RLlib adds needs a verdict before anybody sets it in vain."""
    assert set(INHERITED) == set(vars(AlgorithmConfig()))


def test_other_names_are_those_of_rllibs_setters():
    assert set(KEYWORDS) <= set(INHERITED)
    assert KEYWORDS["_learner_class"] == "learner_class"


class Anything:
    """A value that no key has."""


@pytest.mark.parametrize("key", REFUSED)
def test_a_refused_key_says_so(model_folder, key):
    config = small_config(model_folder).env_runners(num_env_runners=1)
    setattr(config, key, Anything())
    assert message(config) == f"{KEYWORDS.get(key, key)}=<Anything>: {INHERITED[key].reason}."


#: key -> a value that breaks its rule.
BAD = {
    "placement_strategy": "TIGHT", "num_cpus_for_main_process": -1, "custom_resources_for_main_process": {"a": "b"},
    "env_config": None, "env_runner_cls": None, "num_env_runners": -1, "num_envs_per_env_runner": 0,
    "num_cpus_per_env_runner": -0.5, "num_gpus_per_env_runner": NAN, "custom_resources_per_env_runner": {"a": -1},
    "validate_env_runners_after_construction": None, "num_learners": 1.5, "num_cpus_per_learner": "all",
    "num_gpus_per_learner": -1, "custom_resources_per_learner": ["a"], "local_gpu_idx": -1, "lr": 0,
    "grad_clip": 0, "grad_clip_by": "norms", "num_epochs": 0, "shuffle_batch_per_epoch": 1, "_learner_class": int,
    "callbacks_class": "mine", "callbacks_on_algorithm_init": "mine", "callbacks_on_env_runners_recreated": ["mine"],
    "callbacks_on_checkpoint_loaded": 1, "callbacks_on_environment_created": 1, "callbacks_on_episode_end": 1,
    "callbacks_on_evaluate_start": 1, "callbacks_on_evaluate_end": 1, "callbacks_on_sample_end": 1,
    "callbacks_on_train_result": 1, "evaluation_interval": -1, "evaluation_duration": "auto",
    "evaluation_num_env_runners": None, "evaluation_config": [], "log_gradients": "yes", "log_level": "LOUD",
    "log_sys_usage": 2, "seed": -1, "restart_failed_env_runners": 3, "max_num_env_runner_restarts": -2,
    "delay_between_env_runner_restarts_s": -1, "env_runner_health_probe_timeout_s": 0,
    "env_runner_restore_timeout_s": NAN,
}  # fmt: skip


def test_every_rule_has_a_value_that_breaks_it():
    assert set(BAD) == set(RULED)


@pytest.mark.parametrize("key", RULED)
def test_a_bad_value_is_named(model_folder, key):
    config = small_config(model_folder)
    setattr(config, key, BAD[key])
    expected = f"{KEYWORDS.get(key, key)}={shown(BAD[key])}: must be {INHERITED[key].rule.words}."
    assert message(config) == expected


def another(value: object) -> object:
    """A value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else value or {"some": "value"}


@pytest.mark.parametrize("key", sorted(set(HARMLESS) - {"in_evaluation", "_is_frozen"}))
def test_a_harmless_key_is_valid_whatever_it_is(model_folder, key):
    config = small_config(model_folder)
    setattr(config, key, another(getattr(config, key)))
    config.validate()


@pytest.mark.parametrize(
    ("lr", "text"),
    [
        (-1, "-1"),
        (0, "0"),
        (NAN, "nan"),
        (None, "None"),
        ("fast", "'fast'"),
        ([[0, 1e-4]], "[[0, 0.0001]]"),
        ([[0, 1e-4], [1000, -1e-5]], "[[0, 0.0001], [1000, -1e-05]]"),
        ([[0, NAN], [1000, 1e-5]], "[[0, nan], [1000, 1e-05]]"),
        ([[0, 0.0], [1000, 0.0]], "[[0, 0.0], [1000, 0.0]]"),
        ([[10, 1e-4], [1000, 1e-5]], "[[10, 0.0001], [1000, 1e-05]]"),
        ([[0, 1e-4], [0, 1e-5]], "[[0, 0.0001], [0, 1e-05]]"),
        ([0, 1e-4], "[0, 0.0001]"),
    ],
)
def test_a_learning_rate_that_cannot_train(model_folder, lr, text):
    assert message(small_config(model_folder).training(lr=lr)) == f"lr={text}: {LR}"


@pytest.mark.parametrize("lr", [1e-6, [[0, 0.0], [1000, 1e-5], [2000, 0.0]], ((0, 1e-4), (10, 1e-5))])
def test_a_learning_rate_that_can(model_folder, lr):
    small_config(model_folder).training(lr=lr).validate()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (partial(ARPOConfig.offline_data, output="/tmp/x"), f"output='/tmp/x': {NO_OFFLINE_DATA}"),
        (partial(ARPOConfig.offline_data, input_="/tmp/x"), f"input_='/tmp/x': {NO_OFFLINE_DATA}"),
        (
            partial(ARPOConfig.offline_data, output_write_episodes=False),
            f"output_write_episodes=False: {NO_OFFLINE_DATA}",
        ),
        (partial(ARPOConfig.multi_agent, policies={"mine"}), f"policies={{'mine': <PolicySpec>}}: {ONE_POLICY}"),
        (partial(ARPOConfig.multi_agent, policies_to_train=[]), f"policies_to_train=[]: {ONE_POLICY}"),
        (
            partial(ARPOConfig.learners, num_aggregator_actors_per_learner=1),
            "num_aggregator_actors_per_learner=1: learners read episodes as they were sampled, nothing is aggregated.",
        ),
        (
            partial(ARPOConfig.api_stack, enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False),
            "enable_rl_module_and_learner=False: ARPO runs on RLlib's new API stack alone.",
        ),
        (
            partial(ARPOConfig.framework, torch_compile_learner=True),
            "torch_compile_learner=True: the forward pass changes its shape with every tree and is not compiled.",
        ),
        (partial(ARPOConfig.framework, framework="tf2"), "framework='tf2': only 'torch' is supported."),
        (
            partial(ARPOConfig.env_runners, explore=False),
            "explore=False: training samples, and greedy decoding is for evaluation_config.",
        ),
        (
            partial(ARPOConfig.env_runners, num_env_runners=1, create_local_env_runner=True),
            "create_local_env_runner=True: beside remote env runners a local one would start an engine that has "
            "nothing to do.",
        ),
        (
            partial(ARPOConfig.env_runners, rollout_fragment_length=7),
            "rollout_fragment_length=7: has no meaning here; use questions_per_batch: whole questions are sampled.",
        ),
        (
            partial(ARPOConfig.training, train_batch_size_per_learner=64),
            "train_batch_size_per_learner=64: has no meaning here; use questions_per_batch.",
        ),
        (
            partial(ARPOConfig.training, gamma=0.9),
            "gamma=0.9: has no meaning here: a trajectory's reward is not discounted.",
        ),
        (
            partial(ARPOConfig.callbacks, on_episode_step=print),
            "on_episode_step=print: is never called, since an episode is made when its question has ended; "
            "use on_episode_end.",
        ),
        (
            partial(ARPOConfig.reporting, min_time_s_per_iteration=60),
            "min_time_s_per_iteration=60: has no meaning here; use questions_per_batch: one iteration is one batch.",
        ),
    ],
)
def test_what_rllibs_setters_are_told_is_refused_in_one_sentence(model_folder, change, expected):
    assert message(change(small_config(model_folder))) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"batch_mode": "complete_episodes"},
        {"policies": {"default_policy"}},
        {"policies": {"default_policy": PolicySpec()}},
        {"policies_to_train": ["default_policy"]},
        {"create_local_env_runner": True},
    ],
)
def test_what_is_so_anyway_may_be_said(model_folder, change):
    small_config(model_folder).update_from_dict(change).validate()


def test_a_policy_of_ones_own_is_refused_also_under_the_default_name(model_folder):
    config = small_config(model_folder).multi_agent(policies={"default_policy": PolicySpec(config={"lr": 1.0})})
    assert message(config) == f"policies={{'default_policy': <PolicySpec>}}: {ONE_POLICY}"


def test_a_configuration_that_was_stored_is_valid(model_folder):
    """A checkpoint's is: the specification of its policy comes back as a tuple."""
    config = small_config(model_folder)
    config.validate()
    assert type(config).from_state(config.get_state()).seed == 0
    type(config).from_state(config.get_state()).validate()
