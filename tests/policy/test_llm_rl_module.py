"""The module against plain Hugging Face forward passes, one trajectory at a time."""

from pathlib import Path

import numpy as np
import pyarrow.fs
import pytest
import torch
from gymnasium.spaces import Text
from ray.rllib.core.rl_module.rl_module import RLModule

from rllib_arpo.core.columns import END, ENTROPY, LOG_PROBS, LOSS_MASK, TOKEN_IDS
from rllib_arpo.policy.attention import path_gather
from rllib_arpo.policy.llm_rl_module import LLMRLModule

TEMPERATURE = 0.7


def test_autocast_keeps_no_copies_of_weights(model_folder):
    module = make_module(model_folder, "bfloat16")
    kept = []
    module.causal_lm.get_decoder().register_forward_hook(lambda *_: kept.append(torch.is_autocast_cache_enabled()))
    module.score(np.array([1, 2, 3]))
    assert kept == [False]


def make_module(folder, dtype="float32", inference_only=False, **settings):
    return LLMRLModule(
        observation_space=Text(16),
        action_space=Text(16),
        inference_only=inference_only,
        model_config={
            "model_name_or_path": folder,
            "dtype": dtype,
            "temperature": TEMPERATURE,
            "gradient_checkpointing": False,
            "lora": None,
            **settings,
        },
    )


def plain_computation(folder, batch, coefficients, dtype):
    """The oracle: the stock model on every loss token's own path, one path per leaf, then sums.

    Returns:
        log-probs, entropies [K], and the gradient of sum(coefficients * [log-probs, entropies]) by parameter name.
    """
    from transformers import AutoModelForCausalLM

    # torch has no grouped products in fp64.
    experts = {"experts_implementation": "eager"} if dtype is torch.float64 else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", **experts)
    tokens = torch.arange(len(batch[END]))
    log_probs, entropies = {}, {}
    for leaf in torch.nonzero(batch[END] == tokens + 1).squeeze(1):
        path = tokens[(tokens <= leaf) & (leaf < batch[END])]
        logits = model(input_ids=batch[TOKEN_IDS][path][None]).logits[0] / TEMPERATURE
        log_softmax = logits.log_softmax(-1)
        for depth, token in enumerate(path.tolist()):
            if batch[LOSS_MASK][token]:
                log_probs[token] = log_softmax[depth - 1, batch[TOKEN_IDS][token]]
                entropies[token] = -(log_softmax[depth - 1].exp() * log_softmax[depth - 1]).sum()
    tokens = sorted(log_probs)
    log_probs = torch.stack([log_probs[token] for token in tokens])
    entropies = torch.stack([entropies[token] for token in tokens])
    (coefficients[0] * log_probs + coefficients[1] * entropies).sum().backward()
    return log_probs, entropies, {name: parameter.grad for name, parameter in model.named_parameters()}


def random_coefficients(batch, dtype):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, int(batch[LOSS_MASK].sum()), generator=generator, dtype=torch.float64).to(dtype)


def packed_computation(module, batch, coefficients):
    out = module.forward_train(batch)
    module.zero_grad()
    (coefficients[0] * out[LOG_PROBS] + coefficients[1] * out[ENTROPY]).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in module.causal_lm.named_parameters()}
    return out[LOG_PROBS], out[ENTROPY], gradients


def assert_equal_computations(got, want, tolerance):
    torch.testing.assert_close(got[0], want[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[1], want[1], rtol=tolerance, atol=tolerance)
    assert got[2].keys() == want[2].keys()
    for name, gradient in want[2].items():
        error = (got[2][name] - gradient).norm() / gradient.norm().clamp_min(1e-8)
        assert error < tolerance, f"{name}: relative error {error:.2g}"


@pytest.mark.usefixtures("a_block_per_chain", "float64_casts")
@pytest.mark.parametrize(
    ("architecture", "tied", "dtype", "tolerance"),
    [
        ("llama", True, torch.float32, 1e-5),
        ("llama", False, torch.float64, 1e-10),
        ("qwen2", True, torch.float64, 1e-10),
        ("qwen3", False, torch.float32, 1e-5),
        ("mistral", False, torch.float32, 1e-5),
        ("qwen3_moe", True, torch.float32, 1e-5),
    ],
)
def test_equals_a_plain_per_trajectory_computation(tiny_folder, random_pass, architecture, tied, dtype, tolerance):
    folder, batch = tiny_folder(architecture, tied), random_pass(seed=10)
    coefficients = random_coefficients(batch, dtype)
    module = make_module(folder, str(dtype).removeprefix("torch."))
    got = packed_computation(module, batch, coefficients)
    assert_equal_computations(got, plain_computation(folder, batch, coefficients, dtype), tolerance)


@pytest.mark.usefixtures("a_block_per_chain")
def test_gradient_checkpointing_changes_nothing(tiny_folder, random_pass, monkeypatch):
    batch = random_pass(seed=2)
    coefficients = random_coefficients(batch, torch.float64)
    plain, checkpointed = (
        make_module(tiny_folder("llama"), "float64", gradient_checkpointing=flag) for flag in (False, True)
    )
    expected = packed_computation(plain, batch, coefficients)
    for number, again in ((None, [0, 1]), (1, [0])):
        checkpointed.checkpoint_layers(number)
        calls = note_calls(checkpointed, monkeypatch)
        assert_equal_computations(packed_computation(checkpointed, batch, coefficients), expected, 1e-13)
        # No attention is computed again.
        assert calls == ["attention", 0, "attention", 1, *reversed(again)]


def note_calls(module, monkeypatch):
    """From now on the list gets the number of each layer whose MLP is computed, and each attention's call."""
    calls, forward = [], path_gather.PathGather.forward
    for number, layer in enumerate(module.causal_lm.model.layers):
        layer.mlp._forward_pre_hooks.clear()
        layer.mlp.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    monkeypatch.setattr(
        path_gather.PathGather, "forward", lambda *arguments: calls.append("attention") or forward(*arguments)
    )
    return calls


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_bf16_stays_near_fp32_and_keeps_fp32_weights(tiny_folder, random_pass, gradient_checkpointing):
    batch = random_pass(seed=4)
    coefficients = random_coefficients(batch, torch.float32)
    module = make_module(tiny_folder("llama"), "bfloat16", gradient_checkpointing=gradient_checkpointing)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    got = packed_computation(module, batch, coefficients)
    want = packed_computation(make_module(tiny_folder("llama")), batch, coefficients)
    assert got[0].dtype == got[1].dtype == torch.float32
    assert 0 < (got[0] - want[0]).abs().max() < 0.3
    assert (got[0] - want[0]).abs().mean() < 0.05
    for name, gradient in want[2].items():
        assert (got[2][name] - gradient).norm() < 0.1 * gradient.norm(), name


def test_a_pass_without_loss_tokens(tiny_folder, random_pass):
    batch = random_pass(seed=4)
    out = make_module(tiny_folder("llama")).forward_train(batch | {LOSS_MASK: torch.zeros_like(batch[LOSS_MASK])})
    assert out[LOG_PROBS].shape == out[ENTROPY].shape == (0,)
    (out[LOG_PROBS].sum() + out[ENTROPY].sum()).backward()


def test_inference_only_holds_no_weights(tiny_folder):
    module = make_module(tiny_folder("llama"), inference_only=True)
    assert list(module.parameters()) == []
    assert module.get_state() == {}
    module.set_state(make_module(tiny_folder("llama")).get_state(inference_only=True))
    assert list(module.parameters()) == []


def test_it_does_not_act(tiny_folder):
    with pytest.raises(NotImplementedError, match="sampled by the engine"):
        make_module(tiny_folder("llama"), inference_only=True).forward_exploration({})


@pytest.mark.parametrize(("tied", "dtype"), [(True, "bfloat16"), (False, "float32"), (True, "float64")])
def test_state_has_hugging_face_names_and_is_a_copy(tiny_folder, tied, dtype):
    from safetensors.numpy import load_file

    folder = tiny_folder("qwen2", tied)
    module = make_module(folder, dtype)
    state = module.get_state()
    checkpoint = load_file(f"{folder}/model.safetensors")
    assert set(state) == set(checkpoint) | {"lm_head.weight"}
    assert {array.dtype for array in state.values()} == {np.dtype("float64" if dtype == "float64" else "float32")}
    for name, array in checkpoint.items():
        np.testing.assert_array_equal(state[name], array)
    assert (state["lm_head.weight"] is state["model.embed_tokens.weight"]) == tied
    with torch.no_grad():
        module.causal_lm.lm_head.weight.add_(1.0)
    np.testing.assert_array_equal(state["model.embed_tokens.weight"], checkpoint["model.embed_tokens.weight"])


@pytest.mark.parametrize("as_tensors", [False, True])
def test_state_round_trip(tiny_folder, random_pass, as_tensors):
    source, target = (make_module(tiny_folder("llama"), "float64") for _ in range(2))
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.mul_(1.0 + 1e-9)
    state = source.get_state()
    for array in state.values():
        array.flags.writeable = False  # as they come out of Ray's object store
    target.set_state({name: torch.tensor(array) for name, array in state.items()} if as_tensors else state)
    batch = random_pass(seed=5)
    assert torch.equal(source.forward_train(batch)[LOG_PROBS], target.forward_train(batch)[LOG_PROBS])
    assert target.causal_lm.lm_head.weight is target.causal_lm.model.embed_tokens.weight


@pytest.mark.parametrize(("architecture", "tied", "dtype"), [("llama", True, "bfloat16"), ("qwen2", False, "float64")])
def test_a_checkpoint_is_a_hugging_face_model(tiny_folder, tmp_path, architecture, tied, dtype):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tiny_folder(architecture, tied)
    module = make_module(folder, dtype)
    with torch.no_grad():
        module.causal_lm.lm_head.weight.add_(1.0)
    path = module.save_to_path(tmp_path / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(f"{path}/huggingface", dtype="auto")
    restored = RLModule.from_checkpoint(path)
    for name, array in module.get_state().items():
        np.testing.assert_array_equal(model.state_dict()[name], array)
        np.testing.assert_array_equal(restored.get_state()[name], array)
    assert AutoTokenizer.from_pretrained(f"{path}/huggingface").eos_token == "<|im_end|>"
    before, after = (AutoModelForCausalLM.from_pretrained(f) for f in (folder, f"{path}/huggingface"))
    assert after.generation_config.to_dict() == before.generation_config.to_dict()
    # The weights are there once.
    [weights] = [file for file in Path(path).rglob("*") if file.is_file() and file.stat().st_size > 10_000]
    assert weights.name == "model.safetensors"


def test_a_checkpoint_on_another_file_system(tiny_folder, tmp_path):
    module = make_module(tiny_folder("llama"))
    with torch.no_grad():
        module.causal_lm.lm_head.weight.add_(1.0)
    remote = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    module.save_to_path("some/checkpoint", filesystem=remote)
    assert (tmp_path / "some/checkpoint/huggingface/model.safetensors").is_file()
    restored = make_module(tiny_folder("llama"))
    restored.restore_from_path("some/checkpoint", filesystem=remote)
    np.testing.assert_array_equal(restored.get_state()["lm_head.weight"], module.get_state()["lm_head.weight"])
    with pytest.raises(FileNotFoundError, match=r"^some has no folder 'huggingface': it is not a checkpoint of the"):
        restored.restore_from_path("some", filesystem=remote)


def test_a_state_of_another_model_is_refused_as_a_whole(tiny_folder):
    module = make_module(tiny_folder("llama"))
    before = module.get_state()
    state = {name: array + 1 for name, array in before.items()} | {"model.norm.weight": np.zeros(63, np.float32)}
    with pytest.raises(ValueError, match=r"model\.norm\.weight: \(63,\), expected: \(64,\)"):
        module.set_state(state)
    for name, array in module.get_state().items():
        np.testing.assert_array_equal(array, before[name])


def test_the_reference_is_frozen_and_has_the_base_weights(tiny_folder, random_pass):
    module, batch = make_module(tiny_folder("llama"), "bfloat16"), random_pass(seed=6)
    start = module.forward_train(batch)[LOG_PROBS]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1)
    reference = module.make_reference()
    log_probs = reference.forward_train(batch)[LOG_PROBS]
    assert torch.equal(log_probs, start.detach())
    assert not log_probs.requires_grad
    assert not torch.equal(log_probs, module.forward_train(batch)[LOG_PROBS])
