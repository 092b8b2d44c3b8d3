"""The memory that a learner needs on its GPU: pure arithmetic, each number with the product that it comes from.

A learner that trains all weights holds 16 bytes a parameter: weights, gradients and Adam's two moments in fp32. FSDP2
divides them among the learners, and assembles one layer after another to compute. Activations are those that gradient
checkpointing keeps: the input of each layer, in fp32, since autocast leaves the sums that layers add to in the type of
the weights. Not counted, because the code does not fix them: one layer's own values while it is computed again, CUDA's
context, and memory that the allocator cannot use.
"""

from __future__ import annotations

from dataclasses import dataclass

from rllib_arpo.engine.memory import Term, product
from rllib_arpo.policy.model_shape import ModelShape

#: Bytes of fp32: of trained weights, of gradients, of each of Adam's two moments, of activations and logits.
_FP32 = 4
_MOMENTS = 2 * _FP32
#: FSDP2 assembles the next layer while it computes one.
_LAYERS_ASSEMBLED = 2
#: The LM head holds this many arrays of a chunk's logits in fp32 at a time (`policy/lm_head.py`).
_LOGIT_ARRAYS = 2


@dataclass(frozen=True, slots=True)
class LearnerShape:
    """The way in which the learners hold the model.

    Attributes:
        number: of processes that learn, at least 1.
        gpus: of each; a fraction shares one, 0 is the CPU.
        sharded: each holds a part (FSDP2); otherwise all.
        reference: a frozen model for the KL lies beside the trained one.
        offload: Adam's moments are in the CPU's memory except during optimizer steps.
        checkpointing: activations are computed again in the backward pass.
        compute_bytes: of each number in the products of autocast, and of each weight of a LoRA's base.
        head_chunk: tokens whose logits are held at a time.
    """

    number: int
    gpus: float
    sharded: bool
    reference: bool
    offload: bool
    checkpointing: bool
    tokens_per_pass: int
    compute_bytes: int
    head_chunk: int


@dataclass(frozen=True, slots=True)
class LearnerNeed:
    """The memory of one learner.

    Attributes:
        kept: held all the time.
        passes: added by a forward and backward pass.
        step: added by an optimizer step, after the passes; the gradients are in both.
    """

    kept: tuple[Term, ...]
    passes: tuple[Term, ...]
    step: tuple[Term, ...]

    @property
    def resting(self) -> int:
        return _sum(self.kept)

    @property
    def peak(self) -> int:
        return self.resting + max(_sum(self.passes), _sum(self.step))


def learner_need(model: ModelShape, learner: LearnerShape) -> LearnerNeed:
    parts = learner.number if learner.sharded else 1
    trained = model.adapter_parameters or model.parameters
    weights = product("weights", (trained, "parameters"), (_FP32, "bytes"), parts=parts)
    gradients = product("gradients", (trained, "parameters"), (_FP32, "bytes"), parts=parts)
    moments = product("Adam's two moments", (trained, "parameters"), (_MOMENTS, "bytes"), parts=parts)
    kept, passes = [weights], [gradients, *_assembled(model, learner)]
    if model.adapter_parameters:
        base = ((model.parameters, "parameters"), (learner.compute_bytes, "bytes"))
        kept.append(product("frozen weights", *base, parts=parts))
    elif learner.reference:
        kept.append(product("reference of the KL", (trained, "parameters"), (_FP32, "bytes"), parts=parts))
    if not learner.offload:
        kept.append(moments)
    if learner.checkpointing:
        sizes = ((learner.tokens_per_pass, "tokens"), (model.hidden_size, "numbers"), (model.layers, "layers"))
        passes.append(product("inputs of the layers", *sizes, (_FP32, "bytes")))
    passes += head_terms(model, learner)
    return LearnerNeed(tuple(kept), tuple(passes), (gradients, moments) if learner.offload else (gradients,))


def head_terms(model: ModelShape, learner: LearnerShape) -> list[Term]:
    """Memory of the LM head in its backward pass, beside its inputs and outputs for each token."""
    weight = ((model.vocab_size, "words"), (model.hidden_size, "numbers"))
    trained = not model.adapter_parameters
    size, terms = learner.compute_bytes, []
    if trained and size < _FP32:
        terms.append(product("the LM head, cast", *weight, (size, "bytes")))
    if trained and not learner.sharded:
        # It is then added to the gradients; those that FSDP2 assembles have it among them.
        terms.append(product("gradient of the LM head", *weight, (_FP32, "bytes")))
    tokens = min(learner.head_chunk, learner.tokens_per_pass)
    logits = ((_LOGIT_ARRAYS, "arrays"), (tokens, "tokens"), (model.vocab_size, "logits"), (_FP32, "bytes"))
    chunk = [product("chunk of the LM head", *logits)]
    if trained and size < _FP32:
        # The chunk's part of the head's gradient, when one array of logits is left; a CPU casts it before it adds it.
        part = size if learner.gpus else size + _FP32
        held = f"{tokens:,} tokens x {size} bytes + {model.hidden_size:,} numbers x {part} bytes"
        total = model.vocab_size * (tokens * size + model.hidden_size * part)
        chunk.append(Term("chunk of the LM head", total, f"{model.vocab_size:,} words x ({held})"))
    return [*terms, max(chunk, key=lambda term: term.bytes)]


def _assembled(model: ModelShape, learner: LearnerShape) -> list[Term]:
    """The weights and gradients that FSDP2 assembles: the root's during a pass, those of layers in turn."""
    if not learner.sharded:
        return []
    root, layer = model.root_parameters, model.layer_parameters
    return [
        Term(
            "weights assembled",
            (root + _LAYERS_ASSEMBLED * layer) * _FP32,
            f"({root:,} outside of the layers + {_LAYERS_ASSEMBLED} x {layer:,} of a layer) x {_FP32} bytes",
        ),
        Term(
            "their gradients",
            (root + layer) * _FP32,
            f"({root:,} outside of the layers + {layer:,} of a layer) x {_FP32} bytes",
        ),
    ]


def _sum(terms: tuple[Term, ...]) -> int:
    return sum(term.bytes for term in terms)
