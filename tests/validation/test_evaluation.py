"""The allowed contents of `evaluation_config`, and evaluation without it."""

import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.validation.keys import UNREAD_IF_GREEDY, UNREAD_IN_EVALUATION, UNREAD_WITHOUT_FORKS, keyword
from tests.helpers.configs import small_config
from tests.validation.sentences import message


@pytest.mark.parametrize(
    "override",
    [
        {"engine": "vllm"},
        {"max_context_tokens": 2048},
        {"callbacks_on_episode_end": print},
        {"env_runner_restore_timeout_s": 5.0},
    ],
)
def test_evaluation_on_the_env_runners_of_training_has_no_settings_of_its_own_for_them(model_folder, override):
    """`sentences.md` has the sentences."""
    config = small_config(model_folder).evaluation(evaluation_config=override)
    assert message(config).endswith("; set evaluation_num_env_runners >= 1.")
    config.evaluation(evaluation_num_env_runners=1).validate()


def test_evaluation_is_greedy_and_never_forks(model_folder):
    evaluation = small_config(model_folder).get_evaluation_config_object()
    assert (evaluation.explore, evaluation.branching, evaluation.env_config["split"]) == (False, "never", "test")


def test_an_evaluation_that_samples_leaves_the_configuration_of_training_as_it_is(model_folder):
    config = small_config(model_folder)
    config.evaluation(evaluation_config={"explore": True, "num_rollouts": 3}).validate()
    evaluation = config.get_evaluation_config_object()
    assert (evaluation.explore, evaluation.num_rollouts) == (True, 3)
    assert (config.explore, config.num_rollouts) == (True, 4)


def test_a_whole_configuration_for_evaluation_is_refused(model_folder):
    """RLlib would accept it as it is: sampling, with forks, and with a different engine than in training."""
    config = small_config(model_folder).evaluation(evaluation_config=small_config(model_folder))
    assert message(config) == (
        "evaluation_config=<ARPOConfig>: must be a dict of the keys that differ in evaluation, such as "
        "ARPOConfig.overrides() makes, or None."
    )
    small_config(model_folder).evaluation(evaluation_config=ARPOConfig.overrides(seed=5)).validate()


def test_a_key_that_evaluation_does_not_read_is_refused(model_folder):
    assert {"lr", "num_learners", "num_epochs", "kl_coeff", "log_sys_usage", "max_weight_lag"} <= UNREAD_IN_EVALUATION
    # With engines of its own as well: one that could not sleep, or take the learner's weights, would end the run late.
    assert {"weight_sync", "sleep_level", "lora"} <= UNREAD_IN_EVALUATION
    for key in UNREAD_IN_EVALUATION:
        config = small_config(model_folder)
        config.evaluation_config = {key: "another"}
        assert message(config) == (
            f"evaluation_config: {keyword(key)}='another': evaluation does not read it; set it outside of "
            f"evaluation_config."
        )


def test_a_key_that_evaluation_does_not_read_may_be_repeated(model_folder):
    config = small_config(model_folder)
    # An `evaluation_config` in itself would have no end.
    config.evaluation_config = {key: getattr(config, key) for key in UNREAD_IN_EVALUATION - {"evaluation_config"}}
    config.validate()


@pytest.mark.parametrize("key", [*UNREAD_IF_GREEDY])
def test_a_key_that_greedy_decoding_does_not_read_is_refused(model_folder, key):
    config = small_config(model_folder)
    config.evaluation_config = {key: "another"}
    assert message(config) == (
        f"evaluation_config: {key}='another': greedy decoding does not read it; set explore=True beside it."
    )
    config.evaluation_config["explore"] = True
    without_forks = f"evaluation_config: {key}='another': evaluation does not fork; set branching beside it."
    assert (message(config) == without_forks) == (key in UNREAD_WITHOUT_FORKS)
    config.evaluation_config = {"branching": "threshold"} | config.evaluation_config
    assert " beside it." not in message(config)


@pytest.mark.parametrize("override", [{"branch_threshold": "auto"}, {"branching": "permuted"}])
def test_what_follows_earlier_questions_is_that_of_training(model_folder, override):
    config = small_config(model_folder)
    config.evaluation(evaluation_config={"explore": True, "branching": "threshold"} | override)
    assert message(config).endswith(": evaluation does not read it; set it outside of evaluation_config.")


@pytest.mark.parametrize(
    ("training", "override"),
    [
        ({"branch_threshold": "auto", "branch_share": 0.3}, {"branch_threshold": 0.6, "num_rollouts": 4}),
        ({"branch_threshold": "auto"}, {"branch_threshold": 0.6}),
        ({"entropy_baseline": "running"}, {"entropy_baseline": "initial"}),
    ],
)
def test_an_evaluation_that_forks_need_not_follow_earlier_questions_as_training_does(model_folder, training, override):
    config = small_config(model_folder).adaptive_rollout(entropy_baseline_questions=32, **training)
    override = {"explore": True, "branching": "threshold"} | override
    config.evaluation(evaluation_config=override).validate()


@pytest.mark.parametrize(
    ("training", "override", "expected"),
    [
        ({}, {"num_rollouts": 1}, "num_initial_rollouts=2: must not exceed num_rollouts=1."),
        ({}, {"env_config": {"spli": "test"}}, "Unknown env_config key 'spli': did you mean 'split'?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("own", [0, 1])
def test_an_evaluation_that_could_not_sample_is_refused_before_engines_start(
    model_folder, training, override, expected, own
):
    config = small_config(model_folder).update_from_dict(training)
    config.evaluation(
        evaluation_config={"explore": True, "branching": "threshold"} | override, evaluation_num_env_runners=own
    )
    assert message(config) == f"evaluation_config: {expected}"


@pytest.mark.parametrize("explore", [False, True])
def test_an_evaluation_that_does_not_fork_may_say_that_it_does_not_monitor(model_folder, explore):
    config = small_config(model_folder).adaptive_rollout(pre_monitoring_sensitivity=1.0)
    config.evaluation(evaluation_config={"explore": explore, "pre_monitoring_sensitivity": None}).validate()


@pytest.mark.parametrize(
    "override",
    [
        {"explore": True, "num_rollouts": 8, "temperature": 0.7, "branching": "threshold", "branch_width": 2},
        {"explore": False, "branching": "never", "num_rollouts": 1},
        {"num_envs_per_env_runner": 5},
        {"env_config": {"split": "train"}},
        {"seed": 5},
        {"max_response_tokens": 60},
        {"max_context_tokens": 512},
        {"max_context_tokens": 2048, "evaluation_num_env_runners": 1},
    ],
)
def test_what_evaluation_reads_may_differ(model_folder, override):
    own = override.pop("evaluation_num_env_runners", 0)
    small_config(model_folder).evaluation(evaluation_config=override, evaluation_num_env_runners=own).validate()
