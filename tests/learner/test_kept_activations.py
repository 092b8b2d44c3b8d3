"""The memory that the doctor counts, against torch's: what layers keep for the backward pass, what the head holds."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from rllib_arpo.core.columns import END, PARENT, POSITION_IDS, TOKEN_IDS
from rllib_arpo.learner.memory_budget import activation_terms, head_terms
from rllib_arpo.policy import tree_scorer
from rllib_arpo.policy.attention.tree import register_tree_attention
from rllib_arpo.policy.attention.tree_operator import keep_attention
from rllib_arpo.policy.causal_lm import experts_implementation
from rllib_arpo.policy.lm_head import chunked_log_probs
from rllib_arpo.policy.model_shape import model_shape
from rllib_arpo.policy.tree_scorer import TreeScorer
from tests.learner.test_memory_budget import LEARNER, MODEL

#: All differ, so that none stands for another: hidden, intermediate, queries (128), keys (64).
SIZES = {
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 224,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
#: Four experts a token are 256 wide, and another size than the 224 that a mixture also names.
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
NUM_TOKENS = 64


def config_of(architecture: str, num_layers: int, **sizes: object) -> PretrainedConfig:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[architecture]
    return AutoConfig.for_model(architecture, architectures=[name], num_hidden_layers=num_layers, **SIZES, **sizes)


def kept_bytes(config: PretrainedConfig, dtype: torch.dtype, compiled: bool, checkpointing: bool) -> int:
    """The bytes of all distinct tensors that the forward pass of a chain of tokens keeps, weights left out."""
    own = {"attn_implementation": register_tree_attention()}
    if config.model_type == "qwen3_moe":
        own["experts_implementation"] = experts_implementation(torch.float32)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **own).train()
    if checkpointing:
        settings = {"use_reentrant": False, "context_fn": keep_attention}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    scorer = TreeScorer(model, dtype, "path_gather")
    scorer.compile_parts("layers" if compiled else "none", "cpu")
    positions = torch.arange(NUM_TOKENS)
    batch = {TOKEN_IDS: positions, POSITION_IDS: positions, PARENT: positions - 1}
    batch[END] = torch.full_like(positions, NUM_TOKENS)
    weights = {weight.untyped_storage().data_ptr() for weight in scorer.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = scorer(batch, positions[1:], temperature=1.0)
        # Until here nothing that is kept may be freed: another tensor could get its place.
        total = sum(storage.nbytes() for pointer, storage in kept.items() if pointer not in weights)
    del outputs
    return total


def of_a_layer(architecture: str, dtype: torch.dtype, compiled: bool, checkpointing: bool, **sizes: object) -> int:
    """What one layer more keeps."""
    one, two = (kept_bytes(config_of(architecture, n, **sizes), dtype, compiled, checkpointing) for n in (1, 2))
    return two - one


def counted(folder, architecture: str, dtype: torch.dtype, attention: torch.dtype, compiled: bool, **sizes) -> int:
    config_of(architecture, 1, **sizes).save_pretrained(folder)
    learner = replace(
        LEARNER,
        checkpointing=False,
        tokens_per_pass=NUM_TOKENS,
        compute_bytes=dtype.itemsize,
        # On a CPU attention is in fp32.
        gpus=float(attention == dtype != torch.float32),
        compiled=compiled,
    )
    return sum(term.bytes for term in activation_terms(model_shape(str(folder)), learner))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_keep_what_is_counted(tmp_path, dtype):
    """Routing keeps some numbers of each expert of a token as well."""
    measured = of_a_layer("qwen3_moe", dtype, compiled=False, checkpointing=False, **MIXTURE)
    of_shape = counted(tmp_path, "qwen3_moe", dtype, torch.float32, compiled=False, **MIXTURE)
    assert of_shape == pytest.approx(measured, rel=0.05)


def test_checkpointing_keeps_the_inputs_of_layers():
    """In fp32, 4 bytes, although products are in bf16; the operator keeps its output, which autograd does not see."""
    kept = of_a_layer("llama", torch.bfloat16, compiled=False, checkpointing=True)
    assert kept == NUM_TOKENS * SIZES["hidden_size"] * 4


DTYPES = [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize(("architecture", "dtype", "attention", "compiled"), [
    *((architecture, *dtypes, False) for architecture in ("llama", "qwen2", "qwen3") for dtypes in DTYPES),
    pytest.param("qwen3", *DTYPES[2], True, marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.usefixtures("compiler")
def test_a_layer_keeps_what_is_counted(tmp_path, monkeypatch, architecture, dtype, attention, compiled):
    monkeypatch.setattr(tree_scorer, "attention_dtype", lambda *_: attention)
    measured = of_a_layer(architecture, dtype, compiled, checkpointing=False)
    # Weights of norms and biases are not cast.
    assert counted(tmp_path, architecture, dtype, attention, compiled) == pytest.approx(measured, rel=0.01)


def peak_bytes(function) -> int:
    """The largest sum of what torch holds at a time while `function` runs, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("kept", [0, 2**32])
@pytest.mark.parametrize(("num_words", "size", "chunk"), [(4096, 64, 128), (8192, 512, 16)])
def test_the_head_holds_what_the_doctor_counts(dtype, trained, kept, num_words, size, chunk):
    num_tokens = 2 * chunk + 1
    hidden = torch.randn(num_tokens, size).requires_grad_()
    weight = torch.randn(num_words, size).to(torch.float32 if trained else dtype).requires_grad_(trained)
    targets = torch.arange(num_tokens)

    def forward_and_backward() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16, cache_enabled=False):
            log_probs, entropies = chunked_log_probs(hidden, targets, weight, chunk_size=chunk, kept_bytes=kept)
        (log_probs - entropies).sum().backward()

    measured = peak_bytes(forward_and_backward)
    shape = replace(MODEL, vocab_size=num_words, hidden_size=size, adapter_parameters=0 if trained else 1)
    learner = replace(LEARNER, gpus=0.0, compute_bytes=dtype.itemsize, head_chunk=chunk, tokens_per_pass=num_tokens)
    learner = replace(learner, head_kept=kept, checkpointing=not kept)
    counted = sum(term.bytes for term in head_terms(shape, learner))
    # The gradient of the hidden states belongs to the layers.
    assert measured - hidden.nbytes == pytest.approx(counted, rel=0.02)
