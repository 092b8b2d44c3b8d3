"""Models that are loaded for training on packed trees, those that are refused, and experts under autocast."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rllib_arpo.policy.causal_lm import (
    AUTOCAST_EXPERTS,
    experts_implementation,
    load_causal_lm,
    refuse_unsupported_config,
)
from tests.helpers.model_fixtures import change_config
from tests.helpers.models import tiny_vision_language_model


@pytest.fixture
def llama_copy(tiny_folder, tmp_path):
    """A copy of the tiny Llama whose configuration a test may change."""

    def build(**changes):
        folder = Path(shutil.copytree(tiny_folder("llama"), tmp_path / "model"))
        change_config(folder, **changes)
        return str(folder)

    return build


def save_random_model(folder, model_type, **changes):
    from transformers import AutoConfig

    settings = {"vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(model_type, initializer_range=0.2, **(settings | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("model_type", ["phi3", "granite", "gpt_neox"])
def test_other_architectures_pass_the_self_check(tmp_path, model_type):
    folder = save_random_model(tmp_path / "model", model_type, intermediate_size=64, pad_token_id=None)
    assert load_causal_lm(folder, torch.float32).config._attn_implementation == "rllib_arpo_tree"


@pytest.mark.parametrize(("dtype", "experts"), [(torch.float32, "rllib_arpo_autocast"), (torch.float64, "eager")])
def test_a_mixture_of_experts_passes_the_self_check(tiny_folder, dtype, experts):
    config = load_causal_lm(tiny_folder("qwen3_moe"), dtype).config
    assert (config._attn_implementation, config._experts_implementation) == ("rllib_arpo_tree", experts)


def test_the_text_part_of_a_vision_language_model_is_trained(tmp_path):
    """Qwen3.5 is published with a vision part, whose weights are left out."""
    from transformers import Qwen3_5ForConditionalGeneration

    folder = tiny_vision_language_model(tmp_path / "model")
    model = load_causal_lm(folder, torch.float32)
    assert not [name for name in model.state_dict() if "visual" in name]
    model.set_attn_implementation("eager")
    tokens = torch.arange(1, 80)[None]
    whole = Qwen3_5ForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    torch.testing.assert_close(model(tokens).logits, whole(tokens).logits)
    model.save_pretrained(tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", attn_implementation="eager")
    torch.testing.assert_close(saved(tokens).logits, model(tokens).logits)


def test_the_self_check_finds_what_no_key_tells(tmp_path):
    """Bloom's positions are ALiBi biases that it computes itself."""
    folder = save_random_model(tmp_path / "model", "bloom")
    with pytest.raises(ValueError, match=r"'bloom' model .* cannot be trained on packed trees: its log-probs"):
        load_causal_lm(folder, torch.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention", "conv"]}, "has layers of type 'conv': tree passes compute only 'full_att"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "of such models only 'qwen3_next', 'qwen3_5_text'"),
        (
            {"num_experts": 4},
            "is a mixture of 4 experts: of these only 'qwen3_moe', 'qwen3_next', 'qwen3_5_mo",
        ),
        ({"attn_logit_softcapping": 50.0}, "has attn_logit_softcapping=50.0"),
        ({"final_logit_softcapping": 30.0}, "has final_logit_softcapping=30.0"),
        ({"logits_scaling": 8.0}, "has logits_scaling=8.0"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "is not a causal language model"),
    ],
)
def test_configurations_that_are_refused(llama_copy, changes, message):
    folder = llama_copy(**changes)
    with pytest.raises(ValueError, match=message) as refusal:
        load_causal_lm(folder, torch.float32)
    assert folder in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("model_type", "need"), [("gpt_oss", "attention sinks"), ("gemma4_text", "layers share")])
def test_models_that_cannot_be_trained_yet_are_refused_by_name(model_type, need):
    from transformers import AutoConfig

    with pytest.raises(ValueError, match=rf"The '{model_type}' model '' cannot be trained yet: that needs .*{need}"):
        refuse_unsupported_config(AutoConfig.for_model(model_type))


def test_keys_that_change_nothing_are_accepted(llama_copy):
    folder = llama_copy(logits_scaling=1.0, sliding_window=8, use_sliding_window=False, final_logit_softcapping=None)
    load_causal_lm(folder, torch.float32)


def test_dropout_is_switched_off(llama_copy):
    model = load_causal_lm(llama_copy(attention_dropout=0.5, hidden_dropout=0.5), torch.float32)
    assert (model.config.attention_dropout, model.config.hidden_dropout) == (0.0, 0.0)
    assert {layer.self_attn.attention_dropout for layer in model.model.layers} == {0.0}


@pytest.fixture
def experts(tiny_folder):
    """`experts(implementation)` -> the experts of the first layer, in fp32."""

    assert experts_implementation(torch.float32) == AUTOCAST_EXPERTS

    def load(implementation: str) -> torch.nn.Module:
        folder = tiny_folder("qwen3_moe")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation=implementation)
        return model.model.layers[0].mlp.experts

    return load


def computed(experts: torch.nn.Module, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """The output for 40 tokens, and the gradients of both weights and of the hidden states; no token has expert 3."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 64, generator=generator).requires_grad_()
    index = torch.stack([torch.randperm(3, generator=generator)[:2] for _ in range(40)])
    weights = torch.rand(40, 2, generator=generator)
    inputs = (experts.gate_up_proj, experts.down_proj, hidden)
    with torch.autocast("cpu", dtype, enabled=dtype is not None, cache_enabled=False):
        output = experts(hidden, index, weights)
    return [output, *torch.autograd.grad(output.square().sum(), inputs)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-5), (torch.bfloat16, 0.02)])
def test_experts_compute_in_autocasts_type(experts, dtype, tolerance):
    got = computed(experts(AUTOCAST_EXPERTS), dtype)
    for value, plain in zip(got, computed(experts("eager"), dtype), strict=True):
        assert value.dtype == plain.dtype == torch.float32
        assert (value - plain).norm() <= tolerance * plain.norm()
    assert not got[1][3].any() and not got[2][3].any()
