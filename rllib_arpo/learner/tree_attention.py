"""Attention over packed trees, as an attention function for Hugging Face models.

The queries of a block of consecutive tokens attend to keys and values gathered along its path (`tree_spec.py`), so a
token is computed once, however many trajectories share it. The result equals dense attention under the mask
s <= t < end[s] (the tests compare them).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from rllib_arpo.learner.tree_spec import Block, TreeSpec

#: The name under which the function is registered: `attn_implementation=TREE_ATTENTION`.
TREE_ATTENTION = "rllib_arpo_tree"

#: What models pass beside the tensors and what changes nothing here.
_IGNORED_KWARGS = frozenset({"position_ids", "use_cache", "cache_position", "past_key_values", "is_causal"})


def attention_dtype(compute_dtype: torch.dtype, device_type: str) -> torch.dtype:
    """`compute_dtype`, but fp32 in place of lower types on CPU, where their fused backward is several times slower."""
    return torch.promote_types(compute_dtype, torch.float32) if device_type == "cpu" else compute_dtype


def register_tree_attention() -> str:
    """Makes the function known to transformers; returns its name for `attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(TREE_ATTENTION, tree_attention_forward)
    return TREE_ATTENTION


def tree_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: TreeSpec | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer over a packed pass, with the signature of transformers' attention functions.

    Args:
        module: the attention layer.
        query: [1, H, T, D], position embedding applied.
        key, value: [1, H_kv, T, D]; H is a multiple of H_kv.
        attention_mask: None; the tree is the mask.
        scaling: of the scores; None is 1 / sqrt(D).
        dropout: 0.
        tree: the plan of the pass, from `tree_spec`; attention is computed in its dtype.

    Returns:
        [1, T, H, D] in the dtype of `value`, and None (no attention weights).

    Raises:
        ValueError: the model asks for something that tree attention does not do, or the plan does not fit the pass.
    """
    _refuse_unsupported(type(module).__name__, attention_mask, dropout, kwargs)
    if tree is None:
        raise ValueError(f"{type(module).__name__} was called without `tree=`: build it with `tree_spec(end)`.")
    if query.shape[0] != 1 or query.shape[2] != tree.num_tokens:
        raise ValueError(f"the tree has {tree.num_tokens} tokens, but the queries have the shape {list(query.shape)}.")
    inputs = [tensor.to(tree.dtype) for tensor in (query, key, value)]
    output = _TreeAttention.apply(*inputs, tree, scaling)
    return output.transpose(1, 2).to(value.dtype), None


def _refuse_unsupported(layer: str, attention_mask: object, dropout: float, kwargs: dict[str, object]) -> None:
    if attention_mask is not None:
        raise ValueError(f"{layer} passes an attention mask; tree attention takes its mask from the tree alone.")
    if dropout:
        raise ValueError(f"{layer} uses attention dropout {dropout}; log-probs must be those of the sampling policy.")
    for name, argument in kwargs.items():
        if name not in _IGNORED_KWARGS and argument is not None and argument is not False:
            raise ValueError(f"{layer} uses `{name}`, which tree attention does not support.")


class _TreeAttention(torch.autograd.Function):
    """Saves query, key and value only: gathered copies of a shared path would grow with the number of branches."""

    @staticmethod
    def forward(ctx, query, key, value, tree, scaling):
        ctx.save_for_backward(query, key, value)
        ctx.tree, ctx.scaling = tree, scaling
        _, num_heads, num_tokens, _ = query.shape
        # Laid out as [1, T, H, D], which is what the output projection reads.
        output = query.new_empty(1, num_tokens, num_heads, value.shape[-1]).transpose(1, 2)
        for block in tree.blocks:
            queries = query[:, :, block.start : block.stop]
            output[:, :, block.start : block.stop] = _attend(
                queries, _gather(key, block), _gather(value, block), block.mask, scaling
            )
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        query, key, value = ctx.saved_tensors
        # Many branches add to the gradient of a shared key: they are summed in fp32 at least.
        sum_dtype = torch.promote_types(key.dtype, torch.float32)
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(key, dtype=sum_dtype), torch.zeros_like(value, dtype=sum_dtype)
        for block in ctx.tree.blocks:
            rows = slice(block.start, block.stop)
            inputs = (query[:, :, rows], _gather(key, block), _gather(value, block))
            grads = _attend_backward(inputs, block.mask, ctx.scaling, grad_output[:, :, rows])
            grad_query[:, :, rows] = grads[0]
            _scatter_add(grad_key, grads[1], block)
            _scatter_add(grad_value, grads[2], block)
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _gather(tensor: torch.Tensor, block: Block) -> torch.Tensor:
    """[1, H, T, D] -> [1, H, m, D]: the key tokens of the block; a view if they are contiguous."""
    slices = [tensor[:, :, start:stop] for start, stop in block.keys]
    return slices[0] if len(slices) == 1 else torch.cat(slices, dim=2)


def _scatter_add(total: torch.Tensor, part: torch.Tensor, block: Block) -> None:
    """Adds [1, H, m, D] to the key tokens of the block in [1, H, T, D], in place."""
    offset = 0
    for start, stop in block.keys:
        total[:, :, start:stop] += part[:, :, offset : offset + stop - start]
        offset += stop - start


def _attend(query, key, value, mask, scaling):
    """Grouped-query attention of [1, H, n, D] to [1, H_kv, m, D]; plainly causal (n = m) if `mask` is None."""
    grouped = query.shape[1] != key.shape[1]
    if grouped and mask is not None and query.device.type != "cpu":
        # On CUDA, grouped heads together with a mask leave only the unfused kernel.
        repeats = query.shape[1] // key.shape[1]
        key, value, grouped = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1), False
    with torch.autocast(query.device.type, enabled=False):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )


def _attend_backward(inputs, mask, scaling, grad_output):
    """Gradients with respect to (query, key, value); the block's attention is computed again."""
    inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)
    with torch.enable_grad():
        output = _attend(*inputs, mask, scaling)
    return torch.autograd.grad(output, inputs, grad_output)
