"""Layers with sliding windows and with states against plain passes, one path at a time."""

import inspect
import itertools
import sys

import pytest
import torch

from rllib_arpo.core.columns import END
from rllib_arpo.policy.attention import path_gather, states, tree
from rllib_arpo.policy.attention.tree import plan_tree
from rllib_arpo.policy.causal_lm import check_tree_forward, load_causal_lm
from tests.helpers.dense_attention import dense_attention
from tests.policy.test_llm_rl_module import (
    assert_equal_computations,
    make_module,
    packed_computation,
    plain_computation,
    random_coefficients,
)

WINDOWED = ("gemma3_text", "ministral3", "olmo3", "exaone4", "smollm3")
WITH_STATES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


@pytest.fixture
def long_pass(random_pass):
    """Two trees whose prompts are longer than a chunk of the rule, which is 64 tokens, with forks within a chunk."""
    batch = random_pass(seed=11, max_prompt_tokens=90)
    plan = states.StatePlan.plan(batch[END].numpy(), 3, torch.device("cpu"))
    assert max(b - a for a, b in itertools.pairwise(plan.levels[0].offsets)) > 64
    assert len(plan.levels) >= 3
    return batch


def error(got, want) -> float:
    """The relative error of all gradients together."""
    differences = [(got[name].double() - gradient.double()).norm() for name, gradient in want.items()]
    return (torch.stack(differences).norm() / torch.stack([g.double().norm() for g in want.values()]).norm()).item()


@pytest.mark.usefixtures("a_block_per_chain", "float64_casts")
@pytest.mark.parametrize("architecture", WITH_STATES)
def test_in_fp32_trees_are_as_near_to_float64_as_paths(tiny_folder, long_pass, architecture):
    folder, coefficients = tiny_folder(architecture), random_coefficients(long_pass, torch.float32)
    got = packed_computation(make_module(folder), long_pass, coefficients)
    paths = plain_computation(folder, long_pass, coefficients, torch.float32)
    exact = plain_computation(folder, long_pass, coefficients.double(), torch.float64)
    torch.testing.assert_close(got[0], paths[0], rtol=1e-4, atol=1e-4)
    assert error(got[2], exact[2]) < 2 * error(paths[2], exact[2]) + 1e-6


@pytest.mark.usefixtures("a_block_per_chain", "float64_casts")
@pytest.mark.parametrize("architecture", [*WINDOWED, "qwen3_5_text"])
def test_in_float64_trees_equal_paths(tiny_folder, long_pass, architecture):
    folder, coefficients = tiny_folder(architecture), random_coefficients(long_pass, torch.float64)
    got = packed_computation(make_module(folder, "float64"), long_pass, coefficients)
    assert_equal_computations(got, plain_computation(folder, long_pass, coefficients, torch.float64), 1e-12)


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3_5_text"])
def test_gradient_checkpointing_changes_nothing(tiny_folder, long_pass, architecture):
    coefficients = random_coefficients(long_pass, torch.float32)
    got, want = (
        packed_computation(make_module(tiny_folder(architecture), gradient_checkpointing=flag), long_pass, coefficients)
        for flag in (True, False)
    )
    assert_equal_computations(got, want, 1e-6)


@pytest.mark.parametrize("window", [1, 2, 7, 500])
@pytest.mark.parametrize("max_wasted_pairs", [-1, 4096])
def test_a_window_equals_dense_attention(random_pass, monkeypatch, window, max_wasted_pairs):
    """The slow twin counts the tokens between two along the path."""
    monkeypatch.setattr(path_gather, "MAX_WASTED_PAIRS", max_wasted_pairs)
    monkeypatch.setattr(path_gather, "MAX_BLOCK_TOKENS", 4)
    end = random_pass(5, num_trees=3)[END]
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, h, len(end), 8, generator=generator, dtype=torch.float64) for h in (4, 2, 2)]
    for tensor in tensors:
        tensor.requires_grad_()
    expected = dense_attention(*tensors, end, window=window)
    output = plan_tree(end, torch.float64, window=window).attend(*tensors, None)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    got, want = (torch.autograd.grad(one, tensors, grad) for one in (output, expected))
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_keys_before_the_window_are_not_gathered():
    blocks = plan_tree(torch.full((1000,), 1000), window=10).plan.blocks
    assert max(sum(stop - start for start, stop in block.keys) for block in blocks) <= path_gather.MAX_BLOCK_TOKENS + 9


def test_one_call_for_each_level_equals_one_for_each_chain(long_pass, monkeypatch):
    """On GPUs flash-linear-attention computes all chains of a level at once; here a loop has its signature."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    rule = inspect.unwrap(torch_chunk_gated_delta_rule)
    calls = []

    def kernel(query, key, value, *, g, beta, initial_state, output_final_state, cu_seqlens, **kwargs):
        calls.append(len(cu_seqlens) - 1)
        assert initial_state is None or len(initial_state) == calls[-1]
        pieces = [
            rule(*(x[:, a:b] for x in (query, key, value)), g=g[:, a:b], beta=beta[:, a:b], output_final_state=True,
                 initial_state=None if initial_state is None else initial_state[i : i + 1], **kwargs)
            for i, (a, b) in enumerate(itertools.pairwise(cu_seqlens.tolist()))
        ]  # fmt: skip
        return torch.cat([output for output, _ in pieces], dim=1), torch.cat([state for _, state in pieces])

    plan = states.StatePlan.plan(long_pass[END].numpy(), 3, torch.device("cpu"))
    generator, num_tokens = torch.Generator().manual_seed(0), len(long_pass[END])
    query, key, value = (torch.randn(1, num_tokens, 2, 8, generator=generator) for _ in range(3))
    g, beta = -torch.rand(1, num_tokens, 2, generator=generator), torch.rand(1, num_tokens, 2, generator=generator)
    arguments = {"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True, "output_final_state": False}
    want, _ = states.tree_rule(rule, plan, query, key, value, **arguments)
    monkeypatch.setattr(states, "_takes_sequences", lambda _tensor: True)
    got, _ = states.tree_rule(kernel, plan, query, key, value, **arguments)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert calls == [len(level.offsets) - 1 for level in plan.levels]


@pytest.mark.parametrize("architecture", [*WINDOWED, *WITH_STATES])
def test_the_self_check_sees_layers_that_do_not_follow_the_tree(tiny_folder, monkeypatch, architecture):
    """Windows are planned as whole paths, and states flow along the pass."""
    folder = tiny_folder(architecture)
    model = load_causal_lm(folder, torch.float32)
    plan = tree.plan_tree
    monkeypatch.setattr(tree, "plan_tree", lambda *arguments, window=None, **kwargs: plan(*arguments, **kwargs))
    module = sys.modules[type(model).__module__]
    for name in (states.CONVOLUTION, states.RULE):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))
    with pytest.raises(ValueError, match="cannot be trained on packed trees"):
        check_tree_forward(model)


def test_a_window_as_long_as_the_longest_path_is_full_attention():
    kinds = tree.LayerKinds(windows=frozenset({3, 4}))
    attention = tree.plan_pass(torch.tensor([5, 5, 5, 4, 5]), kinds=kinds).attention
    assert attention[4] is attention[None] and attention[3] is not attention[None]
