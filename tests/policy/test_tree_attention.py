"""Tree attention against dense attention under the mask s <= t < end[s]."""

import gc

import pytest
import torch

from rllib_arpo.core.columns import END
from rllib_arpo.policy.attention import path_gather as planning
from rllib_arpo.policy.attention import tree_operator, varlen
from rllib_arpo.policy.attention.chains import chains
from rllib_arpo.policy.attention.tree import (
    PassPlan,
    attention_dtype,
    choose_kernel,
    plan_pass,
    plan_tree,
    tree_attention_forward,
)
from rllib_arpo.policy.attention.tree_operator import PlannedPass
from tests.helpers.dense_attention import END_OF_SUBTREE, dense_attention


def random_tensors(num_tokens, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(heads):
        return torch.randn(1, heads, num_tokens, 8, generator=generator, dtype=torch.float64).to(dtype)

    query, key, value = draw(4), draw(2), draw(2)
    return [tensor.requires_grad_() for tensor in (query, key, value)]


def assert_equals_dense(end, plan=None, window=None):
    tensors = random_tensors(len(end))
    grad = torch.randn(1, len(end), 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = dense_attention(*tensors, end, 0.3, window).transpose(1, 2)
    plan = plan or plan_tree(end, torch.float64)
    output, weights = tree_attention_forward(
        torch.nn.Identity(), *tensors, None, scaling=0.3, tree=PassPlan({None: plan})
    )
    assert weights is None
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    for got, want in zip(
        torch.autograd.grad(output, tensors, grad), torch.autograd.grad(expected, tensors, grad), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("max_wasted_pairs", [-1, 4096])
def test_equals_dense_attention_on_random_trees(random_pass, monkeypatch, seed, max_wasted_pairs):
    monkeypatch.setattr(planning, "MAX_WASTED_PAIRS", max_wasted_pairs)
    monkeypatch.setattr(planning, "MAX_BLOCK_TOKENS", 4)
    assert_equals_dense(random_pass(seed, num_trees=3)[END])


def test_equals_dense_attention_where_the_backward_pass_computes_it_again(random_pass, monkeypatch):
    """As on a GPU without flash attention."""
    monkeypatch.setattr(planning, "_gives_log_sum_exps", lambda _device: False)
    assert_equals_dense(random_pass(1, num_trees=3)[END])


def test_equals_dense_attention_on_a_realistic_pass():
    """A prompt of 300 with four branches, one of which forks: several blocks, cut and merged ones among them."""
    end = torch.tensor(END_OF_SUBTREE[:990])
    blocks = [(block.start, block.stop) for block in plan_tree(end).plan.blocks]
    assert blocks == [(0, 300), (300, 556), (556, 600), (600, 690), (690, 830), (830, 890), (890, 990)]
    assert_equals_dense(end)


def scores_of_sequences(call, query, key, scaling, *, to_last=True):
    """Of each sequence: its queries, its keys, and scores [H, n, m], -inf where flash attention would mask them.

    `to_last` says whether its causal mask is aligned to the last key, or to the first one.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    offsets = (call.query_offsets, call.key_offsets)
    assert [of.tolist()[-1] for of in offsets] == [len(query), len(key)]
    for sequence in range(len(call.query_offsets) - 1):
        queries, keys = (slice(*of[sequence : sequence + 2].tolist()) for of in offsets)
        n, m = queries.stop - queries.start, keys.stop - keys.start
        assert n <= call.max_queries
        assert m <= call.max_keys
        scores = torch.einsum("nhd,mhd->hnm", query[queries], grouped(key[keys], query)) * scaling
        if call.causal:
            seen = torch.ones(n, m, dtype=torch.bool).tril(m - n if to_last else 0)
            seen = seen if call.window is None else seen.triu(m - n - call.window + 1)
            scores = scores.masked_fill(~seen, -torch.inf)
        yield queries, keys, scores


def grouped(tensor, query):
    return tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1)


def flash_forward(call, query, key, value, scaling, *, to_last=True):
    """What flash attention's kernel computes: 0, and a log-sum-exp of inf, for a query without keys."""
    output, log_sum_exp = torch.zeros_like(query), query.new_full((query.shape[1], len(query)), torch.inf)
    for queries, keys, scores in scores_of_sequences(call, query, key, scaling, to_last=to_last):
        if keys.stop > keys.start:
            output[queries] = torch.einsum("hnm,mhd->nhd", scores.softmax(-1), grouped(value[keys], query))
            log_sum_exp[:, queries] = scores.logsumexp(-1)
    return output, log_sum_exp


def flash_backward(call, grad_output, inputs, result, scaling):
    """What its backward kernel computes from the saved output and log-sum-exps."""
    (query, key, value), (output, log_sum_exp) = inputs, result
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    grads = [torch.zeros_like(tensor) for tensor in inputs]
    for queries, keys, scores in scores_of_sequences(call, query, key, scaling):
        probabilities = (scores - log_sum_exp[:, queries, None]).exp()
        above = torch.einsum("nhd,mhd->hnm", grad_output[queries], grouped(value[keys], query))
        grad_scores = probabilities * (above - (grad_output * output)[queries].sum(-1).t()[:, :, None]) * factor
        grads[0][queries] = torch.einsum("hnm,mhd->nhd", grad_scores, grouped(key[keys], query))
        of_keys = torch.einsum("hnm,nhd->mhd", grad_scores, query[queries])
        of_values = torch.einsum("hnm,nhd->mhd", probabilities, grad_output[queries])
        for total, gradient in ((grads[1], of_keys), (grads[2], of_values)):
            total[keys] = gradient.unflatten(1, (key.shape[1], -1)).sum(2)
    return tuple(grads)


@pytest.fixture
def flash_calls(monkeypatch):
    """Flash attention's two kernels on a CPU, and the calls to them."""
    calls = []

    def forward(call, *args):
        calls.append("forward, causal" if call.causal else "forward")
        return flash_forward(call, *args)

    def backward(call, *args):
        calls.append("backward, causal" if call.causal else "backward")
        return flash_backward(call, *args)

    monkeypatch.setattr(varlen, "_flash_forward", forward)
    monkeypatch.setattr(varlen, "_flash_backward", backward)
    varlen.check_here.cache_clear()
    yield calls
    varlen.check_here.cache_clear()


def plan_calls(end, window=None):
    """A plan without the check of the machine."""
    return varlen.VarlenTree._plan(end.numpy(), torch.float64, torch.device("cpu"), window)


@pytest.mark.parametrize(("seed", "window"), [*((seed, None) for seed in range(12)), (2, 1), (3, 7)])
def test_varlen_equals_dense_attention_and_runs_each_kernel_once_a_call(random_pass, flash_calls, seed, window):
    end = random_pass(seed, num_trees=3)[END]
    plan = plan_calls(end, window)
    assert_equals_dense(end, PlannedPass.of(plan), window)
    kinds = [", causal", ""][: len(plan.calls)]
    assert flash_calls == [*(f"forward{kind}" for kind in kinds), *(f"backward{kind}" for kind in kinds)]


#: A prompt of 20 with a branch of 30, which forks into five of 2, and with a branch of 1.
CUT_AT_A_FORK = torch.tensor([61] * 20 + [60] * 30 + [52, 52, 54, 54, 56, 56, 58, 58, 60, 60] + [61])
#: A prompt of 9 whose two branches of 40 fork into three of 1: cuts at both branches, which share the prompt's keys.
TWO_CUTS = torch.tensor([95] * 9 + [52] * 40 + [50, 51, 52] + [95] * 40 + [93, 94, 95])


@pytest.mark.parametrize(
    ("end", "cuts", "gathers"),
    [
        (CUT_AT_A_FORK, [(50, 60, ((0, 20), (20, 50)))], False),
        (TWO_CUTS, [(49, 52, ((0, 9), (9, 49))), (92, 95, ((0, 9), (52, 92)))], True),
        (torch.tensor([4] * 4), [], None),
        (torch.tensor([6, 6, 4, 4, 6, 6]), [], None),
    ],
)
def test_cuts_lie_where_most_keys_are_saved(flash_calls, end, cuts, gathers):
    found = varlen._cuts(list(chains(end.numpy())), end.numpy())
    assert [(cut.start, cut.stop, cut.above) for cut in found] == cuts
    plan = plan_calls(end)
    assert [call.key_index is not None for call in plan.calls[1:]] == [gathers] * (gathers is not None)
    assert_equals_dense(end, PlannedPass.of(plan))


def test_the_machine_is_checked_with_gaps_between_queries_and_between_keys(flash_calls):
    varlen.check_here(torch.device("cpu"), torch.float32)
    assert flash_calls == ["forward, causal", "forward", "backward, causal", "backward"]


@pytest.mark.parametrize("wrong", ["first key", "no keys"])
def test_flash_attention_that_computes_a_tree_wrongly_is_refused(flash_calls, monkeypatch, wrong):
    def forward(call, query, *args):
        output, log_sum_exp = flash_forward(call, query, *args, to_last=wrong != "first key")
        if wrong == "no keys":
            output = output.masked_fill(log_sum_exp.t()[:, :, None] == torch.inf, torch.nan)
        return output, log_sum_exp

    monkeypatch.setattr(varlen, "_flash_forward", forward)
    with pytest.raises(RuntimeError, match="on a small tree here"):
        varlen.check_here(torch.device("cpu"), torch.float32)


def test_torch_takes_the_arguments_of_flash_attention():
    """Its own forward and backward functions, on tensors without values."""
    tensors = [torch.empty(1, heads, 61, 64, dtype=torch.bfloat16, device="meta") for heads in (4, 2, 2)]
    plan = varlen.VarlenTree._plan(CUT_AT_A_FORK.numpy(), torch.bfloat16, torch.device("meta"), None)
    output, log_sum_exp = plan.forward(*tensors, None)
    grads = plan.backward(torch.empty_like(output), tuple(tensors), (output, log_sum_exp), None)
    assert (output.shape, log_sum_exp.shape) == ((1, 4, 61, 64), (1, 4, 61))
    assert [grad.shape for grad in grads] == [tensor.shape for tensor in tensors]


@pytest.mark.parametrize(
    ("name", "dtype", "device", "chosen"),
    [
        ("auto", torch.bfloat16, "cuda", "varlen"),
        ("auto", torch.float32, "cuda", "path_gather"),
        ("auto", torch.float32, "cpu", "path_gather"),
        ("path_gather", torch.bfloat16, "cuda", "path_gather"),
    ],
)
def test_the_kernel_of_a_device(name, dtype, device, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert choose_kernel(name, dtype, device) == chosen


def test_flash_attention_needs_a_newer_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert choose_kernel("auto", torch.bfloat16, "cuda") == "path_gather"
    for device in ("cuda", "cpu"):
        with pytest.raises(ValueError, match=r"^tree_attention='varlen' needs .* CUDA from compute capability 8\.0 on"):
            choose_kernel("varlen", torch.bfloat16, device)


@pytest.mark.parametrize("end", [[3, 2, 3, 5], [2, 4, 4, 4], [1, 1, 3], [3, 5, 3]])
def test_ranges_that_are_no_tree_are_refused(end):
    with pytest.raises(ValueError, match=r"end\[\d\] = \d is outside of .* not a packed tree"):
        plan_tree(torch.tensor(end))


def test_the_operator_keeps_torchs_rules():
    """Schema, shapes and strides without values, autograd, and tracing with dynamic shapes."""
    planned = plan_tree(torch.tensor([6, 6, 4, 4, 6, 6]), torch.float64)
    torch.library.opcheck(tree_operator._tree_attention, (*random_tensors(6), planned.number, None))


def test_a_plan_lives_as_long_as_its_pass():
    """Number and graph hold it; when both are gone, nothing does."""
    gc.collect()
    before = len(tree_operator._PLANS)
    tensors = random_tensors(6)
    output = plan_tree(torch.tensor([6, 6, 4, 4, 6, 6]), torch.float64).attend(*tensors, None)
    gc.collect()
    assert len(tree_operator._PLANS) == before + 1
    output.sum().backward()
    del output
    gc.collect()
    assert len(tree_operator._PLANS) == before


def test_low_precision_is_computed_in_fp32_on_cpu():
    assert attention_dtype(torch.bfloat16, "cpu") == torch.float32
    assert attention_dtype(torch.float64, "cpu") == torch.float64
    assert attention_dtype(torch.bfloat16, "cuda") == torch.bfloat16
    end = torch.tensor([6, 6, 4, 4, 6, 6])
    exact = random_tensors(6, torch.bfloat16)
    output, _ = tree_attention_forward(torch.nn.Identity(), *exact, None, tree=plan_pass(end))
    expected = dense_attention(*(tensor.float() for tensor in exact), end).transpose(1, 2)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"softcap": 30.0}, "uses `softcap`"),
        ({"dropout": 0.1}, "uses attention dropout 0.1"),
        ({"attention_mask": torch.zeros(1, 1, 6, 6)}, "passes an attention mask"),
        ({"tree": None}, "called without `tree=`"),
        ({"tree": plan_pass(torch.tensor([2, 2]))}, "the tree has 2 tokens"),
        ({"sliding_window": 3}, "uses sliding_window=3, for which nothing is planned"),
    ],
)
def test_what_it_does_not_do_is_refused(arguments, message):
    arguments = {"attention_mask": None, "tree": plan_pass(torch.full((6,), 6)), "sliding_window": None} | arguments
    with pytest.raises(ValueError, match=message):
        tree_attention_forward(torch.nn.Identity(), *random_tensors(6), **arguments)
