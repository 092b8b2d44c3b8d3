"""The values of `language_model(lora=...)`."""

from __future__ import annotations

import sys

import pytest

from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model
from tests.validation.sentences import message


@pytest.mark.parametrize(
    "lora",
    [
        {},
        {"r": 2, "lora_alpha": 4, "target_modules": "all-linear", "lora_dropout": 0},
        {"init_lora_weights": "orthogonal"},
    ],
)
def test_lora_is_valid(model_folder, lora):
    small_config(model_folder).language_model(lora=lora).validate()


def test_without_peft_its_extra_is_named(model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"^lora needs the package peft, .* `pip install rllib-arpo\[lora\]`\.$"):
        small_config(model_folder).language_model(lora={"r": 2}).validate()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lora": 8}, "lora=8: must be None or a dict of keywords of peft.LoraConfig."),
        ({"lora": {"alpha": 8}}, "lora: 'alpha' is not a keyword of peft.LoraConfig. Did you mean 'lora_alpha'?"),
        ({"lora": {"r": 0}}, "lora['r']=0: must be an integer >= 1."),
        ({"lora": {"lora_alpha": -1}}, "lora['lora_alpha']=-1: must be a finite number > 0."),
        (
            {"lora": {"lora_dropout": 0.1}},
            "lora['lora_dropout']=0.1: log-probs must be those of the policy that sampled, which had no dropout.",
        ),
        (
            {"lora": {"lora_bias": True}},
            "lora['lora_bias']=True: only plain LoRA is supported, with alpha_pattern, exclude_modules, "
            "init_lora_weights, layers_pattern, layers_to_transform, lora_alpha, r, rank_pattern, target_modules, "
            "use_rslora.",
        ),
        (
            {"lora": {"init_lora_weights": "pissa"}},
            "lora['init_lora_weights']='pissa': must be one of True, False, 'gaussian', 'orthogonal', which leave the "
            "base weights alone.",
        ),
        (
            {"lora": {"target_modules": ["q_proj", "lm_head"]}},
            "lora: adapts 'lm_head', and only linear layers before the LM head are supported.",
        ),
        (
            {"lora": {"target_modules": ["query"]}},
            "lora: Target modules {'query'} not found in the base model. Please check the target modules and try "
            "again.",
        ),
        (
            {
                "lora": {},
                "weight_sync": "ipc",
                "engine": "vllm",
                "num_env_runners": 1,
                "num_gpus_per_env_runner": 0.5,
                "num_gpus_per_learner": 0.5,
            },
            "weight_sync='ipc': sends whole weights; with lora use 'in_process_reload'.",
        ),
    ],
)
def test_one_sentence_names_the_key(model_folder, changes, expected):
    assert message(small_config(model_folder).update_from_dict(changes)) == expected


def test_of_a_mixture_of_experts_the_attention_alone_is_adapted(tmp_path):
    config = small_config(tiny_model(tmp_path, "qwen3_moe"))
    config.language_model(lora={"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}).validate()
    for targets, layer in (("all-linear", "experts"), (["q_proj", "gate"], "gate")):
        assert message(config.language_model(lora={"target_modules": targets})) == (
            f"lora: adapts 'model.layers.0.mlp.{layer}', and only linear layers before the LM head are supported."
        )
