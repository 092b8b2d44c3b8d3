"""LoRA in the learner: adapters alone are trained and saved, with the gradients of plain PEFT."""

import numpy as np
import pytest
import torch

from rllib_arpo.core.columns import LOG_PROBS
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from tests.helpers.weights import move_adapter, peft_model
from tests.learner import plain
from tests.learner.builders import (
    assert_close,
    build_learner,
    make_batch,
    make_config,
    metrics,
    parameters,
    record_gradients,
)

pytestmark = pytest.mark.usefixtures("float64_casts")

LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}


@pytest.fixture(scope="module")
def questions() -> list[QuestionTree]:
    return [plain.random_question(seed, f"q{seed}", masked_probability=0.1) for seed in range(4)]


def lora_config(folder: str, dtype: str = "float64", lora=LORA, **training):
    return make_config(folder, dtype, **training).language_model(lora=lora)


def make_module(folder: str, dtype: str = "float32", lora=LORA, **settings) -> LLMRLModule:
    settings = {"model_name_or_path": folder, "dtype": dtype, "temperature": 0.7, "lora": lora, **settings}
    return LLMRLModule(model_config=settings)


def build(config):
    """A learner whose adapter is no longer the one of the start, which changes nothing."""
    learner = build_learner(config)
    move_adapter(learner)
    return learner


def adapter_of(learner) -> dict[str, np.ndarray]:
    return learner.module["default_policy"].get_state()


def without_prefix(named) -> dict:
    return {name.removeprefix("base_model.model."): value for name, value in named.items()}


@pytest.mark.parametrize(
    ("architecture", "lora", "training"),
    [
        ("llama", LORA, {"kl_coeff": 0.3, "entropy_coeff": 0.1}),
        ("qwen2", {"r": 2, "target_modules": ["q_proj", "up_proj"], "use_rslora": True}, {"attribution": "hard"}),
    ],
)
def test_an_update_equals_plain_peft_on_each_trajectory(tiny_folder, questions, architecture, lora, training):
    folder = tiny_folder(architecture)
    config = lora_config(folder, lora=lora, num_epochs=2, **training).adaptive_rollout(temperature=0.8)
    learner = build(config)
    # The base under the adapter, not a second copy.
    assert not isinstance(learner._reference, torch.nn.Module)
    expected_model = peft_model(plain.load(folder), lora, adapter_of(learner))
    record_gradients(learner)
    result = metrics(learner.update(make_batch(config, questions)))

    reference = plain.all_log_probs(plain.load(folder), questions, config.temperature)
    expected = plain.update(expected_model, questions, config, reference)

    assert 0 < result["clip_fraction"] < 1
    assert len(learner.recorded) == len(expected) == 4
    for actual_step, expected_step in zip(learner.recorded, expected, strict=True):
        assert_close(actual_step, without_prefix(expected_step), rtol=1e-9)
    assert_close(parameters(learner), without_prefix(dict(expected_model.named_parameters())), rtol=1e-9)


def test_the_state_is_the_adapter_under_pefts_names(tiny_folder):
    learner = build(lora_config(tiny_folder("llama"), "float32", lora={"r": 4}))
    state = adapter_of(learner)
    assert {name: array.shape for name, array in state.items() if ".0." in name} == {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (4, 64),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (64, 4),
        "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight": (4, 64),
        "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight": (32, 4),
    }
    assert len(state) == 8
    assert learner.weight_snapshot().weights.keys() == state.keys()
    with pytest.raises(ValueError, match="not the weights of this module"):
        learner.module["default_policy"].set_state({"model.norm.weight": np.zeros(64, np.float32)})


def test_adapters_keep_their_gradients_while_the_reference_scores(tiny_folder, random_pass):
    """FSDP2 takes `requires_grad` from the first forward pass, which may be the reference's."""
    module, seen = make_module(tiny_folder("llama")), []
    module.causal_lm.get_decoder().register_forward_pre_hook(
        lambda *_: seen.append([p.requires_grad for p in module._adapter.tensors().values()])
    )
    module.make_reference().forward_train(random_pass(seed=6))
    assert seen == [[True] * 28]


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_in_bf16_the_base_is_bf16_and_the_adapter_fp32(tiny_folder, random_pass, gradient_checkpointing):
    module, fp32 = (make_module(tiny_folder("llama"), d, gradient_checkpointing=gradient_checkpointing)
                    for d in ("bfloat16", "float32"))  # fmt: skip
    dtypes = {name: p.dtype for name, p in module.causal_lm.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if "lora_" in name} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if "lora_" not in name} == {torch.bfloat16}
    assert {b.dtype for b in module.causal_lm.buffers()} == {torch.float32}
    state = {name: np.full_like(array, 0.02) for name, array in module.get_state().items()}
    batch, gradients = random_pass(seed=4), []
    for each in (module, fp32):
        each.set_state(state)
        out = each.forward_train(batch)[LOG_PROBS]
        assert out.dtype == torch.float32
        out.sum().backward()
        gradients.append((out, {name: t.grad for name, t in each._adapter.tensors().items()}))
    (got, got_gradients), (want, want_gradients) = gradients
    assert 0 < (got - want).abs().mean() < 0.1
    for name, gradient in want_gradients.items():
        assert (got_gradients[name] - gradient).norm() < 0.2 * gradient.norm(), name


def test_a_base_in_bf16_computes_as_full_training_does(tiny_folder, random_pass, tmp_path):
    """Where the checkpoint is bf16 nothing is rounded, and an adapter at its start has no effect."""
    plain.load(tiny_folder("llama"), torch.bfloat16).save_pretrained(tmp_path)
    batch = random_pass(seed=4)
    adapted, full = (make_module(str(tmp_path), "bfloat16", lora=lora) for lora in (LORA, None))
    assert torch.equal(adapted.forward_train(batch)[LOG_PROBS], full.forward_train(batch)[LOG_PROBS])
