"""Computes the log-probs of a pass's tokens: the forward pass of training, as one torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from rllib_arpo.core.columns import END, PARENT, POSITION_IDS, TOKEN_IDS
from rllib_arpo.policy.attention.tree import attention_dtype, plan_pass
from rllib_arpo.policy.causal_lm import layer_kinds, num_experts, tree_hidden_states
from rllib_arpo.policy.compilation import compiles
from rllib_arpo.policy.lm_head import EAGER, KEPT_BYTES, chunked_log_probs, compiled
from rllib_arpo.policy.upload import upload

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
        self.dtype = dtype
        self._tree_attention = tree_attention
        self.layer_kinds = layer_kinds(causal_lm.config)
        self._chunk_functions = EAGER
        #: Bytes of logits that are kept for the backward pass.
        self.kept_logit_bytes = KEPT_BYTES
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
        batch: Mapping[str, np.ndarray],
        rows: np.ndarray,
        temperature: float,
        *,
        with_entropy: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs and entropies of the tokens in `rows` of a pass, each from the hidden state at its parent.

        Args:
            batch: `TOKEN_IDS`, `POSITION_IDS`, `PARENT`, `END`, [T] each: arrays, which FSDP2 leaves where they are.
            rows: [K] indices into them; none is the first token of a prompt.
            temperature: > 0.
            with_entropy: False computes no entropies, and returns None for them.

        Returns:
            log-probs and entropies (nats), [K] each, fp32 or fp64.
        """
        head = self.causal_lm.get_output_embeddings()
        device, autocast = head.weight.device, self.dtype.itemsize < 4
        dtype = attention_dtype(self.dtype, device.type)
        plan = plan_pass(batch[END], dtype, self._tree_attention, self.layer_kinds, device)
        # The pass before this one may still be computed; nothing here waits for it.
        columns = (batch[TOKEN_IDS], batch[POSITION_IDS], batch[PARENT][rows], batch[TOKEN_IDS][rows])
        token_ids, positions, parents, targets = (upload(np.asarray(column, np.int64), device) for column in columns)
        # Each weight is used once in a pass. Autocast's cache would keep its copy until the end, even under FSDP2.
        lower = self.dtype if autocast else None
        with torch.autocast(device.type, lower, enabled=autocast, cache_enabled=False):
            hidden = tree_hidden_states(self.causal_lm, token_ids[None], positions[None], plan)
            return chunked_log_probs(
                hidden[parents],
                targets,
                head.weight,
                head.bias,
                temperature=temperature,
                kept_bytes=self.kept_logit_bytes,
                with_entropy=with_entropy,
                functions=self._chunk_functions,
            )
