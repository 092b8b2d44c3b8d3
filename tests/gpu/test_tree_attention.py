"""The kernels of tree attention on a CUDA device, against dense attention in fp32, and through a whole model."""

from __future__ import annotations

import pytest
import torch
from gymnasium.spaces import Text

from rllib_arpo.core.columns import END, ENTROPY, LOG_PROBS, LOSS_MASK, PARENT, POSITION_IDS, TOKEN_IDS
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from tests.helpers.dense_attention import kernel_errors, relative_error

KERNELS = [
    ("path_gather", torch.float32, 1e-4),
    ("path_gather", torch.bfloat16, 2e-2),
    ("varlen", torch.bfloat16, 2e-2),
    ("varlen", torch.float16, 5e-3),
]


@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), KERNELS)
def test_a_kernel_equals_dense_attention(kernel, dtype, tolerance):
    assert max(kernel_errors(kernel, dtype, "cuda")) < tolerance


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
    [("path_gather", "float32", 1e-2, 1e-2), ("auto", "bfloat16", 0.5, 0.1)],
)
def test_a_model_on_the_gpu_equals_it_on_the_cpu(model_folder, kernel, dtype, gap, tolerance, checkpointing):
    expected, expected_gradient = gradient_and_log_probs(make_module(model_folder, "float32"), "cpu")
    module = make_module(model_folder, dtype, tree_attention=kernel, gradient_checkpointing=checkpointing).to("cuda")
    log_probs, gradient = gradient_and_log_probs(module, "cuda")
    assert (log_probs - expected).abs().max() < gap
    assert relative_error(gradient, expected_gradient) < tolerance
