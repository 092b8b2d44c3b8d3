"""Reads the sizes of a causal language model, from which memory budgets are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rllib_arpo.policy.causal_lm import RECURRENT, layer_kinds, num_experts, refuse_unsupported_config
from rllib_arpo.policy.checkpoint_names import causal_lm_without_weights

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a causal language model.

    Attributes:
        parameters: all parameters without an adapter; tied ones count once.
        layer_parameters: those of the largest decoder layer.
        root_parameters: those outside of the decoder layers: embedding, last norm, head.
        intermediate_size: the size of a layer's MLP; in a mixture, of all experts of a token together.
        experts_per_token: how many experts of a mixture a token uses; 0: the model is not a mixture.
        idle_parameters: those of the experts that a token does not use.
        norms_heads: whether queries and keys have norms of their own (Qwen3).
        adapter_parameters: those of a LoRA, the only trained ones; 0: all weights are trained.
        state_layers: how many layers have a recurrent state in place of keys and values.
        state_size: how many numbers a trajectory's state has in one of these layers.
    """

    parameters: int
    layer_parameters: int
    root_parameters: int
    layers: int
    hidden_size: int
    vocab_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    experts_per_token: int = 0
    idle_parameters: int = 0
    norms_heads: bool = False
    adapter_parameters: int = 0
    state_layers: int = 0
    state_size: int = 0


def model_shape(model_name_or_path: str, lora: dict[str, Any] | None = None) -> ModelShape:
    """The sizes of a model, counted on torch's "meta" device."""
    model = causal_lm_without_weights(model_name_or_path)
    config = model.config
    refuse_unsupported_config(config)
    decoder_layers = model.get_decoder().layers
    layers = [sum(weight.numel() for weight in layer.parameters()) for layer in decoder_layers]
    parameters = sum(weight.numel() for weight in model.parameters())
    vocab_size = model.get_output_embeddings().out_features
    heads, adapter = config.num_attention_heads, 0
    if lora is not None:
        from rllib_arpo.policy.lora import Adapter

        adapter = sum(weight.numel() for weight in Adapter(model, lora).tensors().values())
    return ModelShape(
        parameters=parameters,
        layer_parameters=max(layers),
        root_parameters=parameters - sum(layers),
        layers=len(layers),
        hidden_size=config.hidden_size,
        vocab_size=vocab_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate_size=_intermediate_size(config, decoder_layers[0]),
        experts_per_token=config.num_experts_per_tok if num_experts(config) else 0,
        idle_parameters=_idle_parameters(config, model),
        norms_heads=any(name.endswith("q_norm.weight") for name, _ in decoder_layers.named_parameters()),
        adapter_parameters=adapter,
        state_layers=(getattr(config, "layer_types", None) or []).count(RECURRENT),
        state_size=_state_size(config) if layer_kinds(config).reach is not None else 0,
    )


def _idle_parameters(config: PretrainedConfig, model: nn.Module) -> int:
    if not (experts := num_experts(config)):
        return 0
    of_experts = sum(weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    idle: int = of_experts // experts * (experts - config.num_experts_per_tok)
    return idle


def _state_size(config: PretrainedConfig) -> int:
    """The matrices of a layer's heads, and the tokens that its convolution remembers."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    size: int = values * config.linear_key_head_dim + (config.linear_conv_kernel_dim - 1) * (2 * keys + values)
    return size


def _intermediate_size(config: PretrainedConfig, layer: nn.Module) -> int:
    # Some families name this key differently (OPT: `ffn_dim`); the widest matrix of a layer is the MLP's.
    size: int = getattr(config, "intermediate_size", None) or max(max(weight.shape) for weight in layer.parameters())
    # Some layers of a mixture may have no experts.
    return max(size, config.num_experts_per_tok * config.moe_intermediate_size) if num_experts(config) else size
