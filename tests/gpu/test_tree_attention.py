"""The kernels of tree attention on a CUDA device, against dense attention in fp32, and through a whole model."""

from __future__ import annotations

import pytest
import torch
from gymnasium.spaces import Text

from rllib_arpo.core.columns import END, ENTROPY, LOG_PROBS, LOSS_MASK, PARENT, POSITION_IDS, TOKEN_IDS
from rllib_arpo.policy.attention.tree import plan_tree
from rllib_arpo.policy.llm_rl_module import LLMRLModule

#: A prompt of 300 with four branches, one of which forks; then a second tree.
END_OF_SUBTREE = [990] * 300 + [600] * 300 + [690] * 90 + [890] * 100 + [830] * 40 + [890] * 60 + [990] * 100
END_OF_SUBTREE += [1090] * 20 + [1050] * 40 + [1090] * 40
KERNELS = [
    ("path_gather", torch.float32, 1e-4),
    ("path_gather", torch.bfloat16, 2e-2),
    ("varlen", torch.bfloat16, 2e-2),
    ("varlen", torch.float16, 5e-3),
    ("flex", torch.float32, 1e-2),
    ("flex", torch.bfloat16, 2e-2),
]


def dense_attention(query, key, value, end):
    t, s = torch.arange(len(end), device="cuda")[:, None], torch.arange(len(end), device="cuda")[None, :]
    allowed = (s <= t) & (t < end[None, :])
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ value


def relative_error(got, want) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), KERNELS)
def test_a_kernel_equals_dense_attention(kernel, dtype, tolerance):
    end = torch.tensor(END_OF_SUBTREE, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(heads):
        return torch.randn(1, heads, len(end), 64, device="cuda", generator=generator).to(dtype).requires_grad_()

    inputs = [draw(9), draw(3), draw(3)]
    grad = torch.randn(1, 9, len(end), 64, device="cuda", generator=generator).to(dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = dense_attention(*exact, end)
    output = plan_tree(end, dtype, kernel).attend(*inputs, None)
    assert relative_error(output, expected) < tolerance
    gradients = torch.autograd.grad(output, inputs, grad)
    for got, want in zip(gradients, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        assert relative_error(got, want) < tolerance


def make_module(folder: str, dtype: str, **settings) -> LLMRLModule:
    settings = {"model_name_or_path": folder, "dtype": dtype, "temperature": 0.7, "lora": None, **settings}
    return LLMRLModule(observation_space=Text(16), action_space=Text(16), model_config=settings)


def columns(device: str) -> dict[str, torch.Tensor]:
    """A prompt of 20 tokens, a branch of 10 that forks into 5 and 8, and a branch of 12; all but the prompt counts."""
    end = torch.tensor([55] * 20 + [43] * 10 + [35] * 5 + [43] * 8 + [55] * 12)
    parent = torch.arange(-1, 54)
    parent[35], parent[43] = 29, 19
    depth = torch.zeros(55, dtype=torch.long)
    for token in range(1, 55):
        depth[token] = depth[parent[token]] + 1
    batch = {
        TOKEN_IDS: torch.arange(55) * 7 % 250,
        POSITION_IDS: depth,
        PARENT: parent,
        END: end,
        LOSS_MASK: torch.arange(55) >= 20,
    }
    return {name: column.to(device) for name, column in batch.items()}


def gradient_and_log_probs(module: LLMRLModule, device: str):
    out = module.forward_train(columns(device))
    (out[LOG_PROBS].sum() + out[ENTROPY].sum()).backward()
    return out[LOG_PROBS].detach().cpu(), torch.cat([p.grad.flatten().cpu() for p in module.causal_lm.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("kernel", "dtype", "gap", "tolerance"),
    [("path_gather", "float32", 1e-2, 1e-2), ("auto", "bfloat16", 0.5, 0.1), ("flex", "bfloat16", 0.5, 0.1)],
)
def test_a_model_on_the_gpu_equals_it_on_the_cpu(model_folder, kernel, dtype, gap, tolerance, checkpointing):
    expected, expected_gradient = gradient_and_log_probs(make_module(model_folder, "float32"), "cpu")
    module = make_module(model_folder, dtype, tree_attention=kernel, gradient_checkpointing=checkpointing).to("cuda")
    log_probs, gradient = gradient_and_log_probs(module, "cuda")
    assert (log_probs - expected).abs().max() < gap
    assert relative_error(gradient, expected_gradient) < tolerance
