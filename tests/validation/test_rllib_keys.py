"""RLlib's keys: ARPO checks those that it uses and refuses a change of all others, so that it ignores none."""

from functools import partial

import numpy as np
import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate
from ray.rllib.policy.policy import PolicySpec

from rllib_arpo import ARPOConfig
from rllib_arpo.options.rules import shown
from rllib_arpo.validation.keys import ALLOWED, HARMLESS, HINTS, USED, USED_IN_TRAINING, keyword
from tests.helpers.configs import small_config
from tests.validation.sentences import message

RULES = USED | USED_IN_TRAINING
ALL = set(vars(AlgorithmConfig()))
NAN = float("nan")
LR = "must be " + USED_IN_TRAINING["lr"].in_words() + "."
ONE_POLICY = "one model, that of language_model(), plays every trajectory and is trained."


def test_the_tables_name_keys_of_rllib_and_each_key_once():
    assert RULES.keys() | HARMLESS | HINTS.keys() | ALLOWED.keys() <= ALL
    assert len(RULES.keys() | HARMLESS | HINTS.keys()) == len(USED) + len(USED_IN_TRAINING) + len(HARMLESS) + len(HINTS)
    assert [keyword(key) for key in ("_learner_class", "callbacks_on_episode_end", "framework_str", "_is_atari")] == [
        "learner_class", "on_episode_end", "framework", "_is_atari"
    ]  # fmt: skip


class Anything:
    """A value that no key has."""


@pytest.mark.parametrize("hinted", [True, False])
def test_every_key_that_is_neither_used_nor_harmless_is_refused(model_folder, hinted):
    refused = ALL - RULES.keys() - HARMLESS
    for key in refused & HINTS.keys() if hinted else refused - HINTS.keys():
        config = small_config(model_folder).env_runners(num_env_runners=1)
        usual = f"ARPO does not use this key of RLlib; leave it at {shown(getattr(config, key))}"
        setattr(config, key, Anything())
        assert message(config) == f"{keyword(key)}=<Anything>: {HINTS.get(key, usual)}."


class OfNewerRLlib(ARPOConfig):
    """Has a key that RLlib does not have today."""

    def __init__(self):
        super().__init__()
        self.lookahead = 1


def test_a_key_that_rllib_adds_is_refused_when_it_changes(model_folder):
    config = small_config(model_folder, config=OfNewerRLlib())
    config.validate()
    config.lookahead = 2
    assert message(config) == "lookahead=2: ARPO does not use this key of RLlib; leave it at 1."


#: key -> a value that breaks its rule.
BAD = {
    "placement_strategy": "TIGHT", "num_cpus_for_main_process": -1, "custom_resources_for_main_process": {"a": "b"},
    "env_config": None, "env_runner_cls": None, "num_env_runners": -1, "num_envs_per_env_runner": 0,
    "num_cpus_per_env_runner": -0.5, "num_gpus_per_env_runner": NAN, "custom_resources_per_env_runner": {"a": -1},
    "validate_env_runners_after_construction": None, "num_learners": 1.5, "num_cpus_per_learner": "all",
    "num_gpus_per_learner": -1, "custom_resources_per_learner": ["a"], "local_gpu_idx": -1, "lr": 0,
    "grad_clip": 0, "grad_clip_by": "norms", "num_epochs": 0, "shuffle_batch_per_epoch": 1, "_learner_class": int,
    "_learner_connector": AddOneTsToEpisodesAndTruncate(),
    **{key: "mine" for key in RULES if key.startswith("callbacks_")}, "evaluation_interval": -1,
    "evaluation_duration": "auto", "evaluation_num_env_runners": None, "evaluation_config": [],
    "log_gradients": "yes", "log_level": "LOUD", "log_sys_usage": 2, "seed": 1 << 32, "restart_failed_env_runners": 3,
    "max_num_env_runner_restarts": -2, "delay_between_env_runner_restarts_s": -1,
    "env_runner_health_probe_timeout_s": 0, "env_runner_restore_timeout_s": NAN,
}  # fmt: skip


def test_a_bad_value_is_named(model_folder):
    assert BAD.keys() == {key for key, rule in RULES.items() if rule is not None}
    for key, value in BAD.items():
        config = small_config(model_folder)
        setattr(config, key, value)
        assert message(config) == f"{keyword(key)}={shown(value)}: must be {RULES[key].in_words()}."


@pytest.mark.parametrize("value", [AddOneTsToEpisodesAndTruncate(), lambda: None, lambda a, b, c: None])
def test_a_learner_connector_is_a_function_of_two_spaces(model_folder, value):
    rule = RULES["_learner_connector"].in_words()
    assert message(small_config(model_folder).learners(learner_connector=value)).endswith(f": must be {rule}.")


@pytest.mark.parametrize("value", [AddOneTsToEpisodesAndTruncate, lambda a, b: None, lambda *spaces: None, dict])
def test_whatever_takes_two_spaces_may_be_a_learner_connector(model_folder, value):
    small_config(model_folder).learners(learner_connector=value).validate()


@pytest.mark.parametrize("name", ["CPU", "GPU", "memory", "object_store_memory"])
def test_resources_with_keys_of_their_own_are_not_custom(model_folder, name):
    config = small_config(model_folder).env_runners(custom_resources_per_env_runner={name: 1})
    assert message(config) == (
        f"custom_resources_per_env_runner={{{name!r}: 1}}: must be a dict of numbers >= 0 by the resource's name, "
        "without CPU, GPU and memory."
    )


def another(value: object) -> object:
    """A value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else value or {"some": "value"}


def test_a_harmless_key_is_valid_whatever_it_is(model_folder):
    config = small_config(model_folder)
    for key in HARMLESS - {"in_evaluation", "_is_frozen"}:
        setattr(config, key, another(getattr(config, key)))
    config.validate()


@pytest.mark.parametrize(
    "lr",
    [
        0,
        NAN,
        np.float32(1e-4),
        [[0, 1e-4]],
        [[0, 1e-4], [1000, -1e-5]],
        [[0, 0.0], [1000, 0.0]],
        [[10, 1e-4], [1000, 1e-5]],
        [[0, 1e-4], [0, 1e-5]],
        [0, 1e-4],
    ],
)
def test_a_learning_rate_that_cannot_train(model_folder, lr):
    assert message(small_config(model_folder).training(lr=lr)) == f"lr={shown(lr)}: {LR}"


@pytest.mark.parametrize("lr", [1e-6, [[0, 0.0], [1000, 1e-5], [2000, 0.0]], ((0, 1e-4), (10, 1e-5))])
def test_a_learning_rate_that_can(model_folder, lr):
    small_config(model_folder).training(lr=lr).validate()


@pytest.mark.parametrize(("change", "expected"), [
    (partial(ARPOConfig.offline_data, output_write_episodes=False),
     "output_write_episodes=False: ARPO does not use this key of RLlib; leave it at True."),
    (partial(ARPOConfig.multi_agent, policies={"default_policy": PolicySpec(config={"lr": 1.0})}),
     f"policies={{'default_policy': <PolicySpec>}}: {ONE_POLICY}"),
    (partial(ARPOConfig.multi_agent, policies_to_train=[]), f"policies_to_train=[]: {ONE_POLICY}"),
    (partial(ARPOConfig.framework, framework="tf2"), "framework='tf2': only 'torch' is supported."),
    (partial(ARPOConfig.env_runners, explore=False),
     "explore=False: training samples, and greedy decoding is for evaluation_config."),
    (partial(ARPOConfig.env_runners, num_env_runners=1, create_local_env_runner=True),
     "create_local_env_runner=True: beside remote env runners a local one would start an engine that has "
     "nothing to do."),
    (partial(ARPOConfig.callbacks, on_episode_step=print),
     "on_episode_step=print: is never called, since an episode is made when its question has ended; "
     "use on_episode_end."),
])  # fmt: skip
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


def test_a_configuration_that_was_stored_is_valid(model_folder):
    """A checkpoint's is: the specification of its policy comes back as a tuple."""
    config = small_config(model_folder)
    config.validate()
    assert type(config).from_state(config.get_state()).seed == 0
    type(config).from_state(config.get_state()).validate()
