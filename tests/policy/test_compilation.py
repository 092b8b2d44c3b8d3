"""Compiled parts of the model against the same parts as they are, and how often they are compiled."""

from functools import partial

import pytest
import torch

from rllib_arpo.core.columns import LOG_PROBS
from rllib_arpo.policy import compilation, tree_scorer
from rllib_arpo.policy.lm_head import EAGER, chunked_log_probs, compiled
from tests.helpers.model_fixtures import num_compiled
from tests.policy.test_llm_rl_module import make_module


def head_results(functions, num_tokens, dtype, *, with_entropy=True, with_bias=True, temperature=0.7):
    """Log-probs, entropies if asked for, and the gradients of a loss that weighs each token differently."""
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype, requires_grad=True)

    hidden, weight, bias = draw(num_tokens, 6), draw(17, 6), draw(17) if with_bias else None
    targets = torch.randint(17, (num_tokens,), generator=generator)
    settings = {"temperature": temperature, "chunk_size": 8, "with_entropy": with_entropy, "functions": functions}
    outputs = [output for output in chunked_log_probs(hidden, targets, weight, bias, **settings) if output is not None]
    factors = torch.linspace(-1, 2, num_tokens, dtype=dtype)
    loss = sum((factors * output.square()).sum() for output in outputs)
    return [*outputs, *torch.autograd.grad(loss, [t for t in (hidden, weight, bias) if t is not None])]


@pytest.mark.usefixtures("compiler")
def test_the_compiled_head_equals_the_eager_one_whatever_the_number_of_tokens():
    for with_entropy in (True, False):
        for num_tokens in (16, 11, 5, 20, 1, 3):
            got, want = (
                head_results(functions, num_tokens, torch.float64, with_entropy=with_entropy)
                for functions in (compiled(), EAGER)
            )
            torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    # Forward and backward, with and without entropies, for whole chunks, for a single token and for all other lengths.
    assert num_compiled() == 2 * 2 * 3


@pytest.mark.usefixtures("compiler")
def test_one_process_compiles_the_head_for_all_its_uses(monkeypatch):
    """More graphs of one function than torch's own limit, which do not become code here."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    functions = compiled.__wrapped__()
    for temperature in (0.7, 1.3, 0.7):
        for dtype in (torch.float64, torch.float32):
            for with_entropy in (True, False):
                for num_tokens in (16, 11, 1):
                    got, want = (
                        head_results(f, num_tokens, dtype, with_entropy=with_entropy, temperature=temperature)
                        for f in (functions, EAGER)
                    )
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert num_compiled() > 2 * torch._dynamo.config.recompile_limit


@pytest.mark.parametrize(
    ("choice", "device", "can_compile", "expected"),
    [
        ("auto", "cpu", True, False),
        ("auto", "cuda", True, True),
        ("auto", "cuda", False, False),
        ("layers", "cpu", True, True),
        ("none", "cuda", False, False),
    ],
)
def test_what_is_compiled(choice, device, can_compile, expected, monkeypatch):
    missing = None if can_compile else "a compiler"
    monkeypatch.setattr(compilation, "missing_for_compilation", lambda _device: missing)
    assert compilation.compiles(choice, device) == expected


def test_of_layers_with_experts_the_attention_is_compiled(tiny_folder, monkeypatch):
    """Products of groups have no compiled form on a CPU, and the layers would fall apart into many graphs."""
    monkeypatch.setattr(compilation, "missing_for_compilation", lambda _device: None)
    for architecture, are_compiled in (("llama", True), ("qwen3_moe", False)):
        scorer = make_module(tiny_folder(architecture)).scorer
        scorer.compile_parts("auto", "cuda")
        layers = scorer.causal_lm.get_decoder().layers
        assert {layer._compiled_call_impl is not None for layer in layers} == {are_compiled}
        assert {layer.self_attn._compiled_call_impl is not None for layer in layers} == {not are_compiled}
        assert scorer._chunk_functions == compiled()


@pytest.mark.usefixtures("compiler")
def test_attention_beside_experts_is_one_graph_for_all_lengths(tiny_folder, random_pass, monkeypatch):
    """Not made into code here, so that the results are the same to the bit."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(tree_scorer, "compiled", lambda: EAGER)
    plain, compiled_module = (make_module(tiny_folder("qwen3_moe")) for _ in range(2))
    compiled_module.scorer.compile_parts("layers", "cpu")
    for seed in range(3):
        batch = random_pass(seed=seed)
        for module in (plain, compiled_module):
            module.forward_train(batch)[LOG_PROBS].sum().backward()
    for one, other in zip(plain.parameters(), compiled_module.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)
    assert num_compiled() == 1


def test_a_machine_without_a_compiler_refuses_to_compile(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = (
        r"^learner_compile='layers' needs a compiler \(g\+\+ or clang\+\+; CXX may name another\): install it, or "
    )
    with pytest.raises(ValueError, match=message):
        compilation.compiles("layers", "cpu")
