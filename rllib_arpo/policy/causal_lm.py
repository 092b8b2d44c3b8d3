"""Loads a Hugging Face causal LM for training on packed trees, or says in one sentence why that would be wrong.

Autocast does not cover the grouped products of a mixture's experts; this module makes them in autocast's type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.policy.attention.states import follow_trees
from rllib_arpo.policy.attention.tree import LayerKinds, PassPlan, plan_pass, register_tree_attention
from rllib_arpo.policy.checkpoint_names import causal_lm_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


#: The name under which the function is registered: `experts_implementation=AUTOCAST_EXPERTS`.
AUTOCAST_EXPERTS = "rllib_arpo_autocast"


def experts_implementation(dtype: torch.dtype) -> str:
    """Registers how experts with weights of `dtype` are computed; returns transformers' name for it."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(AUTOCAST_EXPERTS, autocast_experts_forward)
    # torch has no grouped products in fp64; "eager" is transformers' loop over the experts.
    return "eager" if dtype == torch.float64 else AUTOCAST_EXPERTS


def autocast_experts_forward(experts: nn.Module, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """[T, D] hidden states of tokens and their K experts and weights, [T, K] each -> [T, D].

    torch's autocast does not cover grouped products: with fp32 weights they would be fp32, slower than the engine's
    and different from them.
    """
    from transformers.integrations.moe import grouped_mm_experts_forward

    device_type = hidden_states.device.type
    if torch.is_autocast_enabled(device_type):
        experts = _Cast(experts, torch.get_autocast_dtype(device_type))
    return grouped_mm_experts_forward(experts, hidden_states, index, weights)


class _Cast:
    """Stands for a module, with its parameters cast to another type."""

    def __init__(self, module: Any, dtype: torch.dtype):
        self._module = module
        self._dtype = dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return value.to(self._dtype) if isinstance(value, nn.Parameter) else value


#: Configuration keys that change the logits after the head, with the value that has no effect.
_LOGIT_KEYS = {
    "final_logit_softcapping": None,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "lm_head_multiplier": 1.0,
}
#: Configuration keys of attention that a tree pass does not reproduce.
_ATTENTION_KEYS = ("attn_logit_softcapping", "attention_chunk_size", "alibi")
#: Configuration keys of mixtures of experts.
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
#: `model_type` of the mixtures whose weights we saw reach vLLM: like transformers, it holds a layer's experts in one
#: tensor. Other families name or orient them differently.
_MIXTURES = ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text")
#: `model_type` of the models whose layers with a state follow trees (`attention/states.py`).
_MODELS_WITH_STATES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
#: `model_type` of models that people ask for -> what their training on trees would need.
_NOT_YET = {
    "gpt_oss": "attention sinks, experts with biases, and a protocol for its chat format",
    "gemma4_text": "keys and values that layers share, and heads whose size depends on the layer",
}
#: Kinds of layers that tree passes compute.
SLIDING, RECURRENT = "sliding_attention", "linear_attention"
_LAYER_TYPES = ("full_attention", SLIDING, RECURRENT)

#: The length of the self-check's prompt; with recurrent states it is longer than a chunk of the rule (64 tokens).
_CHECK_PROMPT, _CHECK_PROMPT_OF_STATES = 3, 70
#: The self-check's sliding window is shorter than its paths.
_CHECK_WINDOW = 3
#: Largest difference of fp32 log-probs between the tree pass and the model's own forward pass, nats. Rounding alone
#: gives up to 4e-3 on unlikely tokens (SmolLM2, one thread); attending to a single wrong token gives far more.
_CHECK_TOLERANCE = 2e-2


def load_causal_lm(model_name_or_path: str, dtype: torch.dtype, reads_weights: bool = True) -> PreTrainedModel:
    """Loads a causal LM with tree attention and without dropout.

    Args:
        model_name_or_path: a Hugging Face id or folder.
        dtype: the weights' type.
        reads_weights: False leaves the weights uninitialised, and checks no forward pass.

    Raises:
        ValueError: the model cannot be loaded, is not a causal LM, or cannot be trained exactly on packed trees.
    """
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    config = causal_lm_config(model_name_or_path)
    refuse_unsupported_config(config)
    _switch_off_dropout(config)
    own = {"experts_implementation": experts_implementation(dtype)} if num_experts(config) else {}
    settings = {"dtype": dtype, "attn_implementation": register_tree_attention(), **own}
    if reads_weights:
        try:
            model = AutoModelForCausalLM.from_pretrained(model_name_or_path, config=config, **settings)
        except OSError as error:
            raise ValueError(f"model_name_or_path={model_name_or_path!r}: {first_line(error)}") from error
    else:
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(config, **settings)
        model.tie_weights()
    if type(model.get_output_embeddings()) is not nn.Linear:
        raise ValueError(f"The LM head of {type(model).__name__} is not a plain linear layer.")
    if layer_kinds(config).reach is not None:
        follow_trees(model.get_decoder().layers)
    if reads_weights:
        check_tree_forward(model)
    return model


def round_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Converts the weights of a frozen model to `dtype`; it then computes the same as autocast with wider weights.

    Buffers, such as the frequencies of rotary positions, and residual sums stay in the model's type.
    """
    wide = model.dtype
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.get_input_embeddings().register_forward_hook(lambda _module, _inputs, embedded: embedded.to(wide))


def refuse_unsupported_config(config: PretrainedConfig) -> None:
    """Refuses configurations that are known to be wrong on packed trees; reads no weights.

    Raises:
        ValueError: one sentence that names the key.
    """
    title = _title(config)
    if config.model_type in _NOT_YET:
        raise ValueError(f"{title} cannot be trained yet: that needs {_NOT_YET[config.model_type]}.")
    for layer_type in getattr(config, "layer_types", None) or ():
        if layer_type not in _LAYER_TYPES:
            known = ", ".join(map(repr, _LAYER_TYPES))
            raise ValueError(f"{title} has layers of type {layer_type!r}: tree passes compute only {known}.")
        if layer_type == RECURRENT and config.model_type not in _MODELS_WITH_STATES:
            tried = ", ".join(map(repr, _MODELS_WITH_STATES))
            raise ValueError(f"{title} has layers of type {layer_type!r}: of such models only {tried} have been tried.")
    for key in _ATTENTION_KEYS:
        if value := getattr(config, key, None):
            raise ValueError(f"{title} has {key}={value!r}, which tree attention does not support.")
    if (number := num_experts(config)) and config.model_type not in _MIXTURES:
        tried = ", ".join(map(repr, _MIXTURES))
        raise ValueError(f"{title} is a mixture of {number} experts: of these only {tried} have been tried.")
    for key, neutral in _LOGIT_KEYS.items():
        value = getattr(config, key, None)
        if value is not None and value != neutral:
            raise ValueError(f"{title} has {key}={value!r}, which the chunked LM head does not reproduce.")


def layer_kinds(config: PretrainedConfig) -> LayerKinds:
    """What the layers of this model need of a pass beside whole paths."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    slides = getattr(config, "use_sliding_window", True) if types is None else SLIDING in types
    reach = config.linear_conv_kernel_dim - 1 if RECURRENT in (types or ()) else None
    return LayerKinds(frozenset([window] if window and slides else ()), reach)


def num_experts(config: PretrainedConfig) -> int:
    """The number of experts of a layer; 0: the model is not a mixture of experts."""
    return next(filter(None, (getattr(config, key, None) for key in _EXPERT_KEYS)), 0)


def _title(config: PretrainedConfig) -> str:
    return f"The {config.model_type!r} model {config.name_or_path!r}"


def _switch_off_dropout(config: PretrainedConfig) -> None:
    """Sets dropout to 0: log-probs must be those of the sampling policy, which had none."""
    for key, value in config.to_dict().items():
        if ("dropout" in key or key.endswith("_pdrop")) and isinstance(value, float):
            setattr(config, key, 0.0)


@torch.no_grad()
def check_tree_forward(model: PreTrainedModel) -> None:
    """Compares log-probs of a tiny packed tree with the model's own attention on each path.

    This also finds features that no configuration key shows, such as positions that ignore `position_ids`, or logits
    that are changed after the head.

    Raises:
        ValueError: they differ, or the model does not run on a packed tree at all.
    """
    was_training, implementation = model.training, model.config._attn_implementation
    model.eval()
    with _short_windows(model):
        kinds = layer_kinds(model.config)
        # A prompt, and a branch of one token that forks into two of two and one tokens.
        n = _CHECK_PROMPT if kinds.reach is None else _CHECK_PROMPT_OF_STATES
        end = [n + 4] * (n + 1) + [n + 3, n + 3, n + 4]
        tokens = (1 + torch.arange(n + 4, device=model.device) % (model.config.vocab_size - 1))[None]
        positions = torch.tensor([*range(n + 3), n + 1], device=model.device)[None]
        try:
            try:
                plan = plan_pass(end, model.dtype, kinds=kinds, device=model.device)
                hidden = tree_hidden_states(model, tokens, positions, plan)
            except TypeError as error:  # Its decoder does not hand further keywords to the attention.
                title = _title(model.config)
                raise ValueError(f"{title} cannot be trained on packed trees: {first_line(error)}.") from error
            packed = model.get_output_embeddings()(hidden).log_softmax(dim=-1)
            model.set_attn_implementation("eager")
            for path in ([*range(n + 3)], [*range(n + 1), n + 3]):
                own = model(input_ids=tokens[:, path], use_cache=False).logits[0].log_softmax(dim=-1)
                difference = (own - packed[path]).abs().max().item()
                if not difference <= _CHECK_TOLERANCE:
                    raise ValueError(
                        f"{_title(model.config)} cannot be trained on packed trees: "
                        f"its log-probs there differ by {difference:.2g} from its own forward pass."
                    )
        finally:
            model.set_attn_implementation(implementation)
            model.train(was_training)


@contextmanager
def _short_windows(model: PreTrainedModel) -> Iterator[None]:
    """Sliding windows that are shorter than the paths of the self-check."""
    owners = [model.config, *model.get_decoder().modules()]
    windows = [(owner, owner.sliding_window) for owner in owners if getattr(owner, "sliding_window", None)]
    for owner, _ in windows:
        owner.sliding_window = _CHECK_WINDOW
    try:
        yield
    finally:
        for owner, window in windows:
            owner.sliding_window = window


def tree_hidden_states(
    model: PreTrainedModel, token_ids: torch.Tensor, position_ids: torch.Tensor, plan: PassPlan
) -> torch.Tensor:
    """[1, T] packed tokens and their depths -> [T, D] hidden states after the last norm."""
    decoder = model.get_decoder()
    outputs = decoder(input_ids=token_ids, position_ids=position_ids, tree=plan, use_cache=False)
    return outputs.last_hidden_state[0]
