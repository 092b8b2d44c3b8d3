"""Configurations that are refused, and `sentences.md`, which says with which sentences. `make generated` writes it.

Whoever changes a check reads there what users will read.
"""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from ray.rllib.policy.policy import PolicySpec

from rllib_arpo import ARPOConfig
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.options.option import Need
from rllib_arpo.options.rules import Rule, shown
from rllib_arpo.options.tables import OPTIONS
from rllib_arpo.validation.combinations import NEEDS_OF_RLLIB
from rllib_arpo.validation.keys import USED, USED_IN_TRAINING, keyword
from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model

FILE = Path(__file__).with_name("sentences.md")
#: The rule of each option, and of each key of RLlib.
RULES = {name: option.rule for name, option in OPTIONS.items()} | {
    key: rule for key, rule in (USED | USED_IN_TRAINING).items() if rule is not None
}
#: Every rule is tried with each of these.
VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 0.5, 1.0, 1.5, math.nan, math.inf, 10**400, "another", "", "os:getcwd", "no:module",
    (0.9, 0.99), (0.9, 1.0), {}, {"grad_norm": 2.0}, {"grad_norm": 0}, {"gradnorm": 2.0}, {1: 2},
    np.array(["total", "to_go"]),
)  # fmt: skip


class OwnCallbacks(RLlibCallback):
    def on_episode_step(self, **kwargs: Any) -> None:
        """Never called."""


class OwnGradients(ARPOTorchLearner):
    def compute_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Never called."""


#: Changes of the small configuration that are refused by what no table declares, and by combinations of it.
FURTHER: tuple[dict[str, Any], ...] = (
    {"num_rollout": 8},
    {"adaptive_rollout": {"num_rollouts": 8}},
    {"env": None},
    {"env": "ToolMaths-v0"},
    {"env": "ParquetQuestions-v0", "env_config": {"path": "/no/such.parquet", "tools": ["python"]}},
    {"env_config": {"max_tool_cals": 3}},
    {"env_config": {"max_tool_calls": 7}},
    {"model_name_or_path": "/no/such/model"},
    {"max_context_tokens": 4096},
    {"max_context_tokens": 150},
    # RLlib's keys: values that no declared value shows, and keys that ARPO does not use.
    {"custom_resources_per_env_runner": {"GPU": 1}},
    {"output_write_episodes": False},
    {"policies": {"default_policy": PolicySpec(config={"lr": 1.0})}},
    {"policies_to_train": []},
    {"framework_str": "tf2"},
    {"explore": False},
    {"create_local_env_runner": True, "num_env_runners": 1},
    {"callbacks_on_episode_step": print},
    # Modules of one's own.
    {"_model_config": {"depth": 2}},
    {"_model_config": {"dtype": "float16"}},
    {"_model_config": 3},
    {"_model_config": DefaultModelConfig()},
    {"_rl_module_spec": RLModuleSpec(module_class=RLModule)},
    {"_rl_module_spec": MultiRLModuleSpec(rl_module_specs={})},
    # Classes of one's own that wait for what never comes.
    {"callbacks_class": [RLlibCallback, OwnCallbacks]},
    {"_learner_class": OwnGradients},
    # What belongs to other fork rules.
    {"branch_threshold": 0.6, "branching": "probability"},
    {"branch_threshold": 0.9, "branching": "always"},
    {"branch_base_probability": 0.1, "branching": "random", "random_fork_probability": 0.5},
    {"branch_entropy_weight": 2.0, "branching": "random", "random_fork_probability": 0.5},
    {"random_fork_probability": 0.0, "branching": "always"},
    {"branch_depth": 2, "branching": "random", "random_fork_probability": 0.5},
    {"consecutive_fork_penalty": 0.1, "branching": "always"},
    # The same needs as in the table, of other values.
    {"branch_width": 10**12, "branching": "probability"},
    {"baseline": "same_state", "max_resample_rounds": 1},
    {"baseline": "same_state", "returns": "to_go"},
    {"dual_clip": 3.0, "questions_per_minibatch": 5},
    {"shuffle_batch_per_epoch": True, "num_epochs": 2},
    # The third learner pairs with no engine, and the fourth goes to its GPU.
    {"num_learners": 4, "num_gpus_per_learner": 0.1, "num_env_runners": 2, "num_gpus_per_env_runner": 0.9},
    # Engines and weights.
    {"weight_sync": "ipc"},
    {"weight_sync": "ipc", "engine": "vllm"},
    {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1, "num_gpus_per_env_runner": 1},
    {"weight_sync": "ipc", "engine": "vllm", "num_env_runners": 1, "num_gpus_per_env_runner": 0.5},
    {"weight_sync": "ipc", "engine": "vllm", "num_env_runners": 2, "num_gpus_per_env_runner": 0.4,
     "num_gpus_per_learner": 0.5},
    {"engine": "vllm", "engine_kwargs": {"pipeline_parallel_size": 2}},
    {"engine": "vllm", "engine_kwargs": {"enable_return_routed_experts": True}},
    {"engine": "vllm", "engine_kwargs": {"skip_tokenizer_init": True}},
    {"engine": "vllm", "engine_kwargs": {"disable_log_stats": False}},
    {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 2}, "num_gpus_per_env_runner": 1},
    {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 1.5}},
    {"engine": "vllm", "engine_kwargs": {"logprobs_mode": "raw_logits"}},
    {"engine_kwargs": {"top_p": 0.9}},
    # LoRA.
    {"lora": {"alpha": 8}},
    {"lora": {"r": 0}},
    {"lora": {"lora_alpha": -1}},
    {"lora": {"lora_dropout": 0.1}},
    {"lora": {"lora_bias": True}},
    {"lora": {"init_lora_weights": "pissa"}},
    {"lora": {"target_modules": ["q_proj", "lm_head"]}},
    {"lora": {"target_modules": ["embed_tokens"]}},
    {"lora": {"target_modules": ["query"]}},
    {"lora": {}, "weight_sync": "ipc", "engine": "vllm", "num_env_runners": 1, "num_gpus_per_env_runner": 0.5,
     "num_gpus_per_learner": 0.5},
    # Evaluation.
    {"evaluation_config": {"callbacks": print}},
    {"evaluation_config": {"temperatur": 0.5}},
    {"evaluation_config": {"temperature": -1, "explore": True}},
    {"evaluation_config": {"explore": "yes"}},
    {"evaluation_config": {"explore": None}},
    {"evaluation_config": {"num_cpus_per_env_runner": -1}},
    {"evaluation_config": {"policies_to_train": []}},
    {"evaluation_config": {"engine": "vllm"}},
    {"evaluation_config": {"max_context_tokens": 2048}},
    {"evaluation_config": {"callbacks_on_episode_end": print}},
    {"evaluation_config": {"env_runner_restore_timeout_s": 5.0}},
    {"evaluation_config": {"lr": 0.1}},
    {"evaluation_config": {"sleep_level": 1}},
    {"evaluation_config": {"temperature": 0.5}},
    {"evaluation_config": {"explore": True, "branch_width": 2}},
    {"evaluation_config": {"explore": True, "branching": "permuted"}},
    {"branch_threshold": 0.6,
     "evaluation_config": {"explore": True, "branching": "threshold", "branch_threshold": "auto"}},
    {"evaluation_config": {"explore": True, "branching": "threshold", "entropy_window": 5}},
    {"branching": "permuted", "branch_threshold": 0.6,
     "evaluation_config": {"explore": True, "branching": "permuted", "entropy_window": 5}},
    {"branch_threshold": 0.6, "entropy_baseline": "running",
     "evaluation_config": {"explore": True, "branching": "threshold", "entropy_window": 5}},
    {"evaluation_config": {"explore": True, "branching": "threshold", "num_rollouts": 1}},
    {"evaluation_config": {"env_config": {"spli": "test"}}, "evaluation_num_env_runners": 1},
)  # fmt: skip


def message(config: ARPOConfig) -> str:
    """The sentence with which `config` is refused."""
    with pytest.raises(ValueError) as raised:
        config.validate()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def all_needs() -> list[tuple[str, Need]]:
    """(key, need) of options and of RLlib's keys."""
    return [*((name, need) for name, option in OPTIONS.items() for need in option.needs), *NEEDS_OF_RLLIB.items()]


def default_config(model: str) -> ARPOConfig:
    """The defaults, on a model that reads as many tokens."""
    return ARPOConfig().environment("ToolMath-v0").language_model(model_name_or_path=model)


def whole_file(small_model: str, model: str) -> str:
    """Args: `model`: for `default_config`."""
    return "\n".join(_lines(small_model, model)).replace(small_model, "MODEL") + "\n"


def _lines(small_model: str, model: str) -> Iterator[str]:
    yield from ("# What is refused", "", "`make generated` writes this file: read what a change of it tells users.", "")
    yield from ("## One value", "What a value must be. The brackets have those that it may be of these:", "")
    yield from ("    " + ", ".join(map(shown, VALUES)), "")
    for name, rule in RULES.items():
        taken = ", ".join(shown(value) for value in VALUES if _is_taken(rule, value))
        yield f"- `{keyword(name)}`: {rule.in_words()} [{taken}]"
    yield from ("", "## Keys that do not fit together", "Changes of the default configuration.", "")
    for _key, need in all_needs():
        yield f"- `{_in_words(need.example)}`: {message(default_config(model).update_from_dict(need.example))}"
    yield from ("", "## Further ones", "Changes of a small configuration.", "")
    for changes in FURTHER:
        yield f"- `{_in_words(changes)}`: {message(small_config(small_model).update_from_dict(changes))}"


def _is_taken(rule: Rule, value: Any) -> bool:
    try:
        return rule.test(value)
    except ValueError:  # It names a module that cannot be imported.
        return False


def _in_words(changes: dict[str, Any]) -> str:
    return ", ".join(f"{key}={shown(value)}" for key, value in changes.items())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        models = [tiny_model(Path(folder) / str(n), max_position_embeddings=n) for n in (2048, 4096)]
        FILE.write_text(whole_file(*models))
