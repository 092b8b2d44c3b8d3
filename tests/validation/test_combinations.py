"""Keys that fit together; `sentences.md` has those that do not, except what depends on a registry or on packages."""

import sys
from functools import partial
from importlib.metadata import PackageNotFoundError

import pytest
import ray
from packaging.version import Version
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.policy.policy import PolicySpec

from rllib_arpo import ARPOConfig, DAPOConfig
from rllib_arpo.core.branching import BRANCHING_RULES, BranchingRule
from rllib_arpo.engine.vllm_versions import vllm_version
from rllib_arpo.validation.combinations import NEEDS_OF_RLLIB
from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model
from tests.validation.refusals import message


def test_what_belongs_to_a_rule_follows_from_the_registry(model_folder, monkeypatch):
    rule = BranchingRule(lambda node, params, rng: 0, "at some nodes", options=("random_fork_probability",))
    monkeypatch.setitem(BRANCHING_RULES, "own", rule)
    changes = {"branching": "own", "random_fork_probability": 0.5, "budget_allocation": "ranked"}
    for other, expected in (
        ({}, "budget_allocation='ranked': ranks by entropy, which branching='own' must ignore; use 'first_come'."),
        (
            {"random_fork_probability": None},
            "random_fork_probability=None (default): branching='own' needs a probability, which has no default.",
        ),
        (
            {"branching": "always"},
            "random_fork_probability=0.5: only branching='random' or 'own' reads it, not 'always'.",
        ),
    ):
        assert message(small_config(model_folder).update_from_dict(changes | other)) == expected


OWN_GPUS = {"num_gpus_per_learner": 1, "num_env_runners": 1, "num_gpus_per_env_runner": 1}
#: To fork in evaluation.
FORKS = {"explore": True, "branching": "threshold"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # None where it means "off".
        {"grad_clip": None, "log_gradients": False, "seed": None, "adam_betas": [0, 0.99]},
        {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked"},
        {"random_fork_probability": 0.3, "branching": "random", "budget_allocation": "random_over_tree"},
        # "never" switches all of it off, for baselines.
        {"random_fork_probability": 0.3, "branching": "never"},
        {"clip_high": 0.28, "dual_clip": 3.0, "num_epochs": 2},
        {"clip_low": 0.1, "shuffle_batch_per_epoch": True, "questions_per_minibatch": 1},
        {"lora": {}},
        {"lora": {"r": 2, "lora_alpha": 4, "target_modules": "all-linear", "lora_dropout": 0}},
        {"lora": {"init_lora_weights": "orthogonal"}},
        {"weight_sync": "nccl", "engine": "vllm", "num_learners": 2, "max_weight_lag": 1, **OWN_GPUS},
        {"weight_sync": "nccl", "engine": "vllm", "num_learners": 2, "sharding": "fsdp2", **OWN_GPUS},
        # RLlib's keys say what is so anyway.
        {"batch_mode": "complete_episodes"},
        {"policies": {"default_policy"}},
        {"policies": {"default_policy": PolicySpec()}},
        {"policies_to_train": ["default_policy"]},
        {"create_local_env_runner": True},
        # Who makes callbacks by a function says it to RLlib as well.
        {"callbacks_class": partial(RLlibCallback)},
        # What evaluation reads may differ.
        {"evaluation_config": {**FORKS, "num_rollouts": 8, "temperature": 0.7, "branch_width": 2}},
        {"evaluation_config": {"explore": False, "branching": "never", "num_rollouts": 1}},
        {"evaluation_config": {"num_envs_per_env_runner": 5}},
        {"evaluation_config": {"env_config": {"split": "train"}}},
        {"evaluation_config": ARPOConfig.overrides(seed=5)},
        {"evaluation_config": {"max_response_tokens": 60}},
        {"evaluation_config": {"max_context_tokens": 512}},
        {"evaluation_config": {"max_context_tokens": 2048}, "evaluation_num_env_runners": 1},
        {"evaluation_config": {"engine": "vllm"}, "evaluation_num_env_runners": 1},
        {"evaluation_config": {"callbacks_on_episode_end": print}, "evaluation_num_env_runners": 1},
        {"evaluation_config": {"env_runner_restore_timeout_s": 5.0}, "evaluation_num_env_runners": 1},
        # It need not follow earlier questions as training does, nor monitor where it does not fork.
        {"branch_threshold": "auto", "branch_share": 0.3, "entropy_baseline_questions": 32,
         "evaluation_config": {**FORKS, "branch_threshold": 0.6}},
        {"branch_threshold": 0.505, "evaluation_config": {"explore": True, "branching": "random",
         "random_fork_probability": 0.2, "branch_threshold": "auto"}},
        {"entropy_baseline": "running", "branch_threshold": 0.5, "entropy_baseline_questions": 32,
         "evaluation_config": {**FORKS, "entropy_baseline": "initial"}},
        {"branch_width": 1, "pre_monitoring_sensitivity": 1.0,
         "evaluation_config": {"pre_monitoring_sensitivity": None}},
        {"branch_width": 1, "pre_monitoring_sensitivity": 1.0,
         "evaluation_config": {"explore": True, "pre_monitoring_sensitivity": None}},
    ],
)  # fmt: skip
def test_what_belongs_together_is_valid(model_folder, unknown_cluster, changes):
    small_config(model_folder).update_from_dict(changes).validate()


@pytest.mark.parametrize(("training", "evaluation", "holds"), [
    ({"hub_split": "train[:9]"}, {"split": "test"}, False),
    ({"hub_split": "train[:9]"}, {"split": "test", "hub_split": "test"}, True),
    ({"hub_split": "train[:9]", "train_fraction": 0.9}, {"split": "test"}, True),
    ({"hub_split": "train[:9]"}, {"split": "train"}, True),
    ({"hub_split": "train[:9]"}, None, True),
    ({}, {"split": "test"}, True),
])  # fmt: skip
def test_a_hub_split_of_training_is_not_what_evaluation_calls_test(training, evaluation, holds):
    config = ARPOConfig().environment("ToolEnv-v0", env_config={"task": "gsm8k", **training})
    config.evaluation(evaluation_config=evaluation and {"env_config": evaluation})
    assert NEEDS_OF_RLLIB["evaluation_config"].holds(config) == holds


def test_the_clip_bounds_of_an_algorithm_stay_where_an_update_has_a_single_step(model_folder):
    config = small_config(model_folder, config=DAPOConfig()).training(overlong_buffer_tokens=20)
    assert (config.clip_high, config.questions_per_minibatch) == (0.28, config.questions_per_batch)
    config.validate()
    assert message(config.training(clip_high=0.3)).startswith("clip_high=0.3: an update with one step clips nothing")
    assert not ray.is_initialized()


@pytest.mark.usefixtures("unknown_cluster")
@pytest.mark.parametrize(("learners", "learner", "env_runners", "env_runner"), [
    (4, 0.1, 4, 0.9), (2, 0.45, 2, 0.55), (2, 0.45, 3, 0.55), (3, 0.1, 2, 0.9),
    # Two engines are on each GPU.
    (2, 0.32, 4, 0.34),
])  # fmt: skip
def test_learners_may_share_gpus_with_engines(model_folder, learners, learner, env_runners, env_runner):
    config = small_config(model_folder).learners(num_learners=learners, num_gpus_per_learner=learner)
    config.env_runners(num_env_runners=env_runners, num_gpus_per_env_runner=env_runner).validate()


def test_the_weight_transfer_of_an_older_vllm_is_refused(model_folder, monkeypatch):
    changes = {"weight_sync": "nccl", "engine": "vllm", **OWN_GPUS}
    config = small_config(model_folder).update_from_dict(changes)
    assert vllm_version() >= Version("0.32")
    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", lambda build: {"vllm": "0.26.0"}[build])
    assert message(config) == (
        "weight_sync='nccl': needs vLLM 0.32 or newer, and 0.26.0 is installed; use 'in_process_reload'."
    )


def test_a_mixture_of_experts_needs_a_newer_vllm(tmp_path, monkeypatch):
    folder = tiny_model(tmp_path, "qwen3_moe")
    for engine in ("vllm", "scripted"):
        small_config(folder, engine=engine).validate()
    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", lambda build: {"vllm": "0.26.0"}[build])
    assert message(small_config(folder, engine="vllm")) == (
        f"model_name_or_path={folder!r}: a mixture of 4 experts needs vLLM 0.32 or newer, and 0.26.0 is installed."
    )


def test_without_peft_its_extra_is_named(model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"^lora needs the package peft, .* `pip install rllib-arpo\[lora\]`\.$"):
        small_config(model_folder).language_model(lora={"r": 2}).validate()


def test_of_a_mixture_of_experts_the_attention_alone_is_adapted(tmp_path):
    config = small_config(tiny_model(tmp_path, "qwen3_moe"))
    config.language_model(lora={"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}).validate()
    for targets, layer in (("all-linear", "experts"), (["q_proj", "gate"], "gate")):
        assert message(config.language_model(lora={"target_modules": targets})) == (
            f"lora: adapts 'model.layers.0.mlp.{layer}', but only linear layers before the LM head are supported."
        )


def test_a_driver_without_vllm_leaves_its_version_to_the_engines(monkeypatch):
    def missing(build: str) -> str:
        raise PackageNotFoundError(build)

    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", missing)
    assert vllm_version() is None
