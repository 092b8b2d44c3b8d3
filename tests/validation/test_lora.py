"""The values of `language_model(lora=...)`."""

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


def test_of_a_mixture_of_experts_the_attention_alone_is_adapted(tmp_path):
    config = small_config(tiny_model(tmp_path, "qwen3_moe"))
    config.language_model(lora={"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}).validate()
    for targets, layer in (("all-linear", "experts"), (["q_proj", "gate"], "gate")):
        assert message(config.language_model(lora={"target_modules": targets})) == (
            f"lora: adapts 'model.layers.0.mlp.{layer}', and only linear layers before the LM head are supported."
        )
