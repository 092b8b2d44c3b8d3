"""Layers with a recurrent state (Gated DeltaNet) on packed trees: a chain continues from where its parent chain ended.

transformers passes the keywords of a model's forward to the two functions that look at other tokens: a convolution over
the last few tokens, and the delta rule. Only these two are replaced, in the module of the model.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rllib_arpo.policy.attention.chains import chains, last_tokens, tokens_of
from rllib_arpo.policy.upload import upload

#: The functions of a transformers module that read other tokens than their own.
CONVOLUTION, RULE = "causal_conv1d_fn", "torch_chunk_gated_delta_rule"


@dataclass(frozen=True, slots=True)
class Level:
    """The chains with equally many chains above them.

    Attributes:
        tokens: [n] int64, their tokens, one chain after the other.
        offsets: where each chain begins among them, and n.
        begins: the same numbers on the device, int64.
        parents: [C] int64, for each chain the row of its parent in the level above; not used at the top.
    """

    tokens: Tensor
    offsets: tuple[int, ...]
    begins: Tensor
    parents: Tensor


@dataclass(frozen=True, slots=True)
class StatePlan:
    """What layers with a state need of a pass of T tokens.

    Attributes:
        levels: from the roots down.
        order: [T] int64, the place of each token in the levels' tokens.
        inputs: [m] int64, the convolution's input: for each chain the tokens above it that the convolution reads, then
            its own. 0 is padding before a root, 1 + t is token t.
        outputs: [T] int64, the place of each token in `inputs`.
    """

    levels: tuple[Level, ...]
    order: Tensor
    inputs: Tensor
    outputs: Tensor

    @classmethod
    def plan(cls, ends: np.ndarray, reach: int, device: torch.device) -> StatePlan:
        """Prepares the tables of a packed tree.

        Args:
            ends: [T] int64; token t precedes s on a path iff t <= s < ends[t].
            reach: how many earlier tokens the convolution reads.
        """
        levels: list[list[tuple[int, int, int]]] = []  # Of each chain: its tokens, and the row of its parent.
        rows: dict[int, int] = {}  # The first token of a chain -> its row in its level.
        inputs: list[int] = []
        outputs: list[int] = []
        for chain in chains(ends):
            depth = len(chain.path)
            if depth == len(levels):
                levels.append([])
            rows[chain.start] = len(levels[depth])
            levels[depth].append((chain.start, chain.stop, rows[chain.path[-1][0]] if chain.path else 0))
            above = 1 + tokens_of(last_tokens(chain.path, reach))
            inputs += [0] * (reach - len(above)) + above.tolist()
            outputs += range(len(inputs), len(inputs) + chain.stop - chain.start)
            inputs += range(1 + chain.start, 1 + chain.stop)

        def indices(numbers: Sequence[int] | np.ndarray) -> Tensor:
            return upload(np.asarray(numbers, np.int64), device)

        tokens = [tokens_of([(start, stop) for start, stop, _ in level]) for level in levels]
        offsets = [(0, *np.cumsum([stop - start for start, stop, _ in level]).tolist()) for level in levels]
        return cls(
            tuple(
                Level(indices(own), begins, indices(begins), indices([parent for *_, parent in level]))
                for own, begins, level in zip(tokens, offsets, levels, strict=True)
            ),
            indices(np.argsort(np.concatenate(tokens))),
            indices(inputs),
            indices(outputs),
        )


def follow_trees(layers: Sequence[torch.nn.Module]) -> None:
    """From now on the functions of these layers' module follow the tree, if a pass comes with a plan (`tree=`)."""
    for module in {sys.modules[type(part).__module__] for layer in layers for part in layer.modules()}:
        for name, on_tree in ((CONVOLUTION, tree_convolution), (RULE, tree_rule)):
            own = getattr(module, name, None)
            if own is not None and not hasattr(own, "follows_trees"):
                setattr(module, name, _following(own, on_tree))


def _following(own: Callable[..., Any], on_tree: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo would compile a graph for every shape of a tree.
    @torch.compiler.disable
    @functools.wraps(own)
    def function(tensor: Tensor, *args: Any, tree: Any = None, **kwargs: Any) -> Any:
        # transformers replaces its function by a kernel of a package that is installed, which CPUs cannot run.
        plain = own if tensor.is_cuda else getattr(own, "__wrapped__", own)
        if tree is None:
            return plain(tensor, *args, **kwargs)
        return on_tree(plain, tree.states, tensor, *args, **kwargs)

    function.follows_trees = True
    return function


def tree_convolution(
    convolution: Callable[..., Tensor], plan: StatePlan, hidden: Tensor, weight: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Each token's convolution over the last tokens of its own path.

    Args:
        convolution: the causal one of a sequence, `hidden` [1, C, T] and `weight` [C, K] -> [1, C, T].
    """
    sequence = F.pad(hidden, (1, 0))[:, :, plan.inputs]
    return convolution(sequence, weight, *args, **kwargs)[:, :, plan.outputs]


def tree_rule(
    rule: Callable[..., tuple[Tensor, Tensor | None]],
    plan: StatePlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """The gated delta rule along each token's own path.

    Args:
        rule: computes a sequence from an `initial_state`: its output and its last state.
        query, key: [1, T, H, K].
        value: [1, T, H, V].
        g, beta: [1, T, H], logarithms of the decay, and the strength of the update.

    Returns:
        [1, T, H, V], and None in place of a last state.
    """
    own_rule = functools.partial(rule, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)
    run = _at_once if _takes_sequences(query) else _one_by_one
    outputs: list[Tensor] = []
    states: Tensor | None = None
    for level in plan.levels:
        tensors = [tensor[:, level.tokens] for tensor in (query, key, value, g, beta)]
        initial = None if states is None else states[level.parents]
        output, states = run(own_rule, level, initial, *tensors)
        outputs.append(output)
    return torch.cat(outputs, dim=1)[:, plan.order], None


def _takes_sequences(tensor: Tensor) -> bool:
    """Whether transformers has replaced the rule by flash-linear-attention's, which takes several sequences."""
    from transformers.utils import is_flash_linear_attention_available

    return tensor.is_cuda and is_flash_linear_attention_available()


def _at_once(
    rule: Callable[..., tuple[Tensor, Tensor]],
    level: Level,
    initial: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    return rule(
        query, key, value, g=g, beta=beta, initial_state=initial, output_final_state=True, cu_seqlens=level.begins
    )  # fmt: skip


def _one_by_one(
    rule: Callable[..., tuple[Tensor, Tensor]],
    level: Level,
    initial: Tensor | None,
    *tensors: Tensor,
) -> tuple[Tensor, Tensor]:
    """Chains of one level differ in length, and padding them to the longest costs more than a loop on CPUs."""
    found = []
    for row, (start, stop) in enumerate(itertools.pairwise(level.offsets)):
        query, key, value, g, beta = (tensor[:, start:stop] for tensor in tensors)
        state = None if initial is None else initial[row : row + 1]
        found.append(rule(query, key, value, g=g, beta=beta, initial_state=state, output_final_state=True))
    return torch.cat([output for output, _ in found], dim=1), torch.cat([state for _, state in found])
