"""Computes the log-probs of a pass's tokens: the forward pass of training, as one torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rllib_arpo.core.columns import END, PARENT, POSITION_IDS, TOKEN_IDS
from rllib_arpo.policy.attention.tree import attention_dtype, plan_pass
from rllib_arpo.policy.causal_lm import layer_kinds, num_experts, tree_hidden_states
from rllib_arpo.policy.compilation import compiles
from rllib_arpo.policy.lm_head import EAGER, chunked_log_probs, compiled

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TreeScorer(nn.Module):
    """Decoder and chunked LM head in one `forward`, around which FSDP2 can assemble the weights.

    This `forward` reads the head's weight itself: outside of it the weight is split.

    Args:
        causal_lm: the model; its own forward is never called.
        dtype: the type of the matrix products; autocast makes products of fewer than 32 bits.
        tree_attention: the kernel, a key of `TREE_KERNELS`; "auto": the fastest that runs.
    """

    def __init__(self, causal_lm: PreTrainedModel, dtype: torch.dtype, tree_attention: str):
        super().__init__()
        self.causal_lm = causal_lm
        self._dtype = dtype
        self._tree_attention = tree_attention
        self._layer_kinds = layer_kinds(causal_lm.config)
        self._chunk_functions = EAGER
        #: Whether `compile_parts` has had the layers compiled.
        self.compiles_layers = False

    def compile_parts(self, choice: str, device_type: str) -> None:
        """Has torch compile head and layers at their first use, if `learner_compile` wants it on this type of device.

        Of a layer with experts only the attention is compiled: grouped products would split it into many graphs.

        Raises:
            ValueError: the machine cannot compile.
        """
        self.compiles_layers = compiles(choice, device_type)
        self._chunk_functions = compiled() if self.compiles_layers else EAGER
        if self.compiles_layers:
            mixture = num_experts(self.causal_lm.config) > 0
            for layer in self.causal_lm.get_decoder().layers:
                # All layers share one compiled function, for passes of any length.
                part = (getattr(layer, "self_attn", None) or layer.linear_attn) if mixture else layer
                part.compile(dynamic=True)

    def forward(
        self,
        batch: dict[str, Any],
        rows: torch.Tensor,
        temperature: float,
        *,
        with_entropy: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs and entropies of the tokens in `rows` of a pass, each from the hidden state at its parent.

        Args:
            batch: `TOKEN_IDS`, `POSITION_IDS`, `PARENT`, `END`, [T] each.
            rows: [K] indices into them; none is the first token of a prompt.
            temperature: > 0.
            with_entropy: False computes no entropies, and returns None for them.

        Returns:
            log-probs and entropies (nats), [K] each, fp32 or fp64.
        """
        head = self.causal_lm.get_output_embeddings()
        token_ids = batch[TOKEN_IDS].long()
        device_type, autocast = head.weight.device.type, self._dtype.itemsize < 4
        dtype = attention_dtype(self._dtype, device_type)
        plan = plan_pass(batch[END], dtype, self._tree_attention, self._layer_kinds)
        # Each weight is used once in a pass. Autocast's cache would keep its copy until the end, even under FSDP2.
        lower = self._dtype if autocast else None
        with torch.autocast(device_type, lower, enabled=autocast, cache_enabled=False):
            hidden = tree_hidden_states(self.causal_lm, token_ids[None], batch[POSITION_IDS].long()[None], plan)
            return chunked_log_probs(
                hidden[batch[PARENT][rows]],
                token_ids[rows],
                head.weight,
                head.bias,
                temperature=temperature,
                with_entropy=with_entropy,
                functions=self._chunk_functions,
            )
