"""Experts under autocast against transformers' plain loop over them."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from rllib_arpo.policy.causal_lm import AUTOCAST_EXPERTS, experts_implementation


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


def test_transformers_own_implementation_ignores_autocast(experts):
    """The reason for ours; the day on which this fails, ours can go."""
    in_fp32, in_bf16 = (computed(experts("grouped_mm"), dtype)[0] for dtype in (None, torch.bfloat16))
    assert torch.equal(in_fp32, in_bf16)
    ours = computed(experts(AUTOCAST_EXPERTS), torch.bfloat16)[0]
    assert (ours - in_fp32).norm() > 1e-3 * in_fp32.norm()
