"""Attention over packed trees, as an attention function for Hugging Face models.

A token is computed once, however many trajectories share it. There are several kernels, one file each; each plans a
pass once, and every layer uses the plan. The result equals dense attention under the mask s <= t < end[s] (the tests
compare them).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from rllib_arpo.policy.attention.chains import depths
from rllib_arpo.policy.attention.path_gather import PathGather
from rllib_arpo.policy.attention.states import StatePlan
from rllib_arpo.policy.attention.tree_operator import PlannedPass, TreePlan
from rllib_arpo.policy.attention.varlen import VarlenTree

#: The name under which the function is registered: `attn_implementation=TREE_ATTENTION`.
TREE_ATTENTION = "rllib_arpo_tree"

#: Arguments that models pass besides the tensors, and that have no effect here.
_IGNORED_KWARGS = frozenset({"position_ids", "use_cache", "cache_position", "past_key_values", "is_causal"})


#: Value of `tree_attention` -> its kernel.
TREE_KERNELS: dict[str, type[TreePlan]] = {"path_gather": PathGather, "varlen": VarlenTree}


def choose_kernel(name: str, dtype: torch.dtype, device_type: str) -> str:
    """Resolves "auto": variable-length flash attention if it is available (half precision, Ampere and newer).

    Raises:
        ValueError: the kernel of that name does not run in this dtype on this device.
    """
    is_half = dtype in (torch.float16, torch.bfloat16)
    has_flash = is_half and device_type == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    if name == "auto":
        return "varlen" if has_flash else "path_gather"
    if name == "varlen" and not has_flash:
        raise ValueError(
            f"tree_attention='varlen' needs half precision on CUDA from compute capability 8.0 on, "
            f"not {dtype} on {device_type}."
        )
    return name


def attention_dtype(compute_dtype: torch.dtype, device_type: str) -> torch.dtype:
    """`compute_dtype`, but fp32 in place of lower types on CPU, where their fused backward is several times slower."""
    return torch.promote_types(compute_dtype, torch.float32) if device_type == "cpu" else compute_dtype


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """The layers of a model that need more than the whole path of a token.

    Attributes:
        windows: the lengths of sliding windows, in tokens; a token's own is one of them.
        reach: how many earlier tokens the convolutions of layers with a state read; None: no layer has a state.
    """

    windows: frozenset[int] = frozenset()
    reach: int | None = None


CPU = torch.device("cpu")
#: Each layer attends to the whole path.
FULL_ATTENTION = LayerKinds()


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What the layers of a model need of one pass.

    Attributes:
        attention: length of a sliding window, None for the whole path -> the plan.
        states: of layers with a state; None: no layer has one.
    """

    attention: Mapping[int | None, PlannedPass]
    states: StatePlan | None = None


def plan_pass(
    end: npt.ArrayLike,
    dtype: torch.dtype = torch.float32,
    kernel: str = "auto",
    kinds: LayerKinds = FULL_ATTENTION,
    device: torch.device = CPU,
) -> PassPlan:
    """Plans a pass for all layers of a model; see `plan_tree`."""
    ends = np.asarray(end, np.int64)
    plan = partial(plan_tree, ends, dtype, kernel, device=device)
    attention: dict[int | None, PlannedPass] = {None: plan()}
    if kinds.windows:
        longest = int(depths(ends).max(initial=0)) + 1
        attention |= {window: attention[None] if window >= longest else plan(window=window) for window in kinds.windows}
    states = None if kinds.reach is None else StatePlan.plan(ends, kinds.reach, device)
    return PassPlan(attention, states)


def plan_tree(
    end: npt.ArrayLike,
    dtype: torch.dtype = torch.float32,
    kernel: str = "auto",
    window: int | None = None,
    device: torch.device = CPU,
) -> PlannedPass:
    """Plans the attention of a pass, without waiting for the device.

    Args:
        end: [T] integers in the CPU's memory; token t attends to s iff s <= t < end[s].
        dtype: the attention's type, from `attention_dtype`.
        kernel: a key of `TREE_KERNELS`, or "auto".
        window: how many tokens the attention reaches back, the token's own included; None: the whole path.
        device: of the plan's tensors.

    Raises:
        ValueError: the ranges [t, end[t]) are not nested, so `end` describes no tree; or the kernel does not run here.
    """
    chosen = TREE_KERNELS[choose_kernel(kernel, dtype, device.type)]
    return PlannedPass.of(chosen.plan(np.asarray(end, np.int64), dtype, device, window))


def register_tree_attention() -> str:
    """Registers `tree_attention_forward` with transformers; returns its name for `attn_implementation`."""
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
    sliding_window: int | None = None,
    tree: PassPlan | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer over a packed pass, with the signature of transformers' attention functions.

    Args:
        module: the attention layer.
        query: [1, H, T, D], position embedding applied.
        key, value: [1, H_kv, T, D]; H is a multiple of H_kv.
        attention_mask: None; the tree is the mask.
        scaling: the factor on the scores; None is 1 / sqrt(D).
        dropout: must be 0.
        sliding_window: how many tokens the layer reaches back, the token's own included; None: the whole path.
        tree: the plan of the pass, from `plan_pass`; attention is computed in its dtype.

    Returns:
        [1, T, H, D] in the dtype of `value`, and None (no attention weights).

    Raises:
        ValueError: the model needs a feature that tree attention lacks, or the plan does not fit the pass.
    """
    _refuse_unsupported(type(module).__name__, attention_mask, dropout, kwargs)
    if tree is None:
        raise ValueError(f"{type(module).__name__} was called without `tree=`: build it with `plan_pass(end)`.")
    if sliding_window not in tree.attention:
        raise ValueError(f"{type(module).__name__} uses sliding_window={sliding_window}, for which nothing is planned.")
    planned = tree.attention[sliding_window]
    inputs = [tensor.to(planned.plan.dtype) for tensor in (query, key, value)]
    output = planned.attend(inputs[0], inputs[1], inputs[2], scaling)
    return output.transpose(1, 2).to(value.dtype), None


def _refuse_unsupported(layer: str, attention_mask: object, dropout: float, kwargs: dict[str, object]) -> None:
    if attention_mask is not None:
        raise ValueError(f"{layer} passes an attention mask; tree attention takes its mask from the tree alone.")
    if dropout:
        raise ValueError(f"{layer} uses attention dropout {dropout}; log-probs must be those of the sampling policy.")
    for name, argument in kwargs.items():
        if name not in _IGNORED_KWARGS and argument is not None and argument is not False:
            raise ValueError(f"{layer} uses `{name}`, which tree attention does not support.")
