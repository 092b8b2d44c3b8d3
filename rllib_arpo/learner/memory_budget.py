"""Computes the memory that a learner needs on its device: pure arithmetic, in which each number comes with its product.

A learner that trains all weights holds 16 bytes a parameter: weights, gradients and Adam's two moments in fp32. FSDP2
divides them among the learners, and assembles one layer after another in the type of the products. Activations are
those that autograd keeps of all layers (`kept_token_bytes`), or of some and the inputs and attention of the others. The
sum leaves out what the code does not determine: the gradients of one layer's values, CUDA's context, and memory that
the allocator cannot use.
"""

from dataclasses import dataclass

from rllib_arpo.engine.memory import Term, product
from rllib_arpo.learner.offload import NUMBERS_AT_A_TIME
from rllib_arpo.policy.model_shape import ModelShape

#: Bytes of a number in fp32: of trained weights, gradients, each of Adam's two moments, activations and logits.
_FP32 = 4
_MOMENTS = 2 * _FP32
#: The value of `gradient_checkpointing` that asks for `decide_checkpointing`.
AUTO = "auto"
#: FSDP2 assembles the next layer while it computes one.
_LAYERS_ASSEMBLED = 2
#: The LM head holds this many arrays of a chunk's logits in fp32 at a time (`policy/lm_head.py`).
_LOGIT_ARRAYS = 2


@dataclass(frozen=True, slots=True)
class LearnerShape:
    """How the learners hold the model.

    Attributes:
        tokens_per_pass: the limit of a pass.
        compute_bytes: bytes of a number in autocast's products, and of a weight in a LoRA's base.
        head_chunk: tokens whose logits are held at a time.
        head_kept: bytes of logits that are kept for the backward pass if all activations are.
        number: the number of learners, at least 1.
        gpus: GPUs of each learner; a fraction means a shared GPU, 0 the CPU.
        sharded: whether each learner holds only a part of the model (FSDP2).
        reference: whether a learner holds a frozen model for the KL beside the trained one.
        offload: whether Adam's moments are in the CPU's memory, and on the device only part by part during a step.
        checkpointing: whether the backward pass computes activations again; None: undecided, counted as True.
        checkpointed_layers: of how many layers, the first ones; None: of all.
        compiled: whether the layers are compiled; they then keep less.
        remote: whether the learners have processes of their own.
    """

    tokens_per_pass: int
    compute_bytes: int
    head_chunk: int
    head_kept: int = 0
    number: int = 1
    gpus: float = 1.0
    sharded: bool = False
    reference: bool = False
    offload: bool = False
    checkpointing: bool | None = None
    checkpointed_layers: int | None = None
    compiled: bool = False
    remote: bool = True


@dataclass(frozen=True, slots=True)
class LearnerNeed:
    """The memory of one learner.

    Attributes:
        kept: what it holds all the time.
        passes: what a forward and backward pass adds.
        step: what an optimizer step adds, after the passes; both include the gradients.
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
    passes += [*activation_terms(model, learner), *head_terms(model, learner)]
    step = [gradients]
    if learner.offload:
        # The embedding is the largest parameter.
        numbers = min(trained, max(NUMBERS_AT_A_TIME * parts, model.vocab_size * model.hidden_size))
        step.append(product("Adam's moments at a time", (numbers, "parameters"), (_MOMENTS, "bytes"), parts=parts))
    return LearnerNeed(tuple(kept), tuple(passes), tuple(step))


def activation_terms(model: ModelShape, learner: LearnerShape) -> list[Term]:
    """The activations that autograd keeps of the layers, and the weights that autocast has cast for them.

    With gradient checkpointing autograd keeps the inputs of layers and the outputs of their attention. The backward
    pass computes the first layers again when it has freed the activations of the others. The inputs are fp32: autocast
    leaves the sums to which layers add in the type of the weights.
    """
    tokens, terms = (learner.tokens_per_pass, "tokens"), []
    again = checkpointed_layers(model, learner)
    if again:
        kept = _FP32 * (model.hidden_size + model.heads) + _attention_bytes(learner) * model.heads * model.head_dim
        terms.append(product("kept of layers computed again", tokens, (kept, "bytes"), (again, "layers")))
    layers = (max(model.layers - again, 1), "layers")
    name = "activations of the layers" if layers[0] > 1 else "activations of a layer"
    terms.append(product(name, tokens, (kept_token_bytes(model, learner), "bytes"), layers))
    if learner.compute_bytes < _FP32 and not model.adapter_parameters and not learner.sharded:
        cast = ((model.layer_parameters, "parameters"), layers, (learner.compute_bytes, "bytes"))
        terms.append(product("weights of the layers, cast", *cast))
    return terms


def checkpointed_layers(model: ModelShape, learner: LearnerShape) -> int:
    """How many layers the backward pass computes again."""
    if learner.checkpointing is False:
        return 0
    return model.layers if learner.checkpointed_layers is None else min(learner.checkpointed_layers, model.layers)


def _attention_bytes(learner: LearnerShape) -> int:
    return learner.compute_bytes if learner.gpus else max(learner.compute_bytes, _FP32)


def kept_token_bytes(model: ModelShape, learner: LearnerShape) -> int:
    """How many bytes per token autograd keeps of one of Llama's or Qwen's layers for the backward pass.

    `tests/learner/test_kept_activations.py` compares them with torch's. D is the hidden size, I the MLP's, Q the size
    of all heads' queries and K of their keys, or values; a number has c bytes in products and a in attention. A layer
    keeps

    - of each of its two norms the input and the normalised input (4 D each), and one number;
    - the inputs of products: one per product if autocast casts them (5 cD), otherwise one per norm (2 cD);
    - queries, keys, values and output of attention (2 aQ + 2 aK), its log-sum-exps, and the output once more if the
      output product needs another type (cQ);
    - gate, up, the activated gate and the product of both (4 cI);
    - of each expert of a token the inputs of its two products (2 cD), from which rows are copied;
    - of norms of queries and keys their inputs in fp32 and normalised ((4 + c)(Q + K)), and one number of each head.

    A compiled layer keeps its input (4 D), the outputs of both norms and of attention (3 cD) and 3 cI instead, and of
    norms of queries and keys only their inputs (c (Q + K)).
    """
    size = learner.compute_bytes
    attention = _attention_bytes(learner)
    hidden, queries, keys = model.hidden_size, model.heads * model.head_dim, model.kv_heads * model.head_dim
    kept = attention * 2 * (queries + keys) + _FP32 * (2 + model.heads)
    # In a mixture of experts only the attention is compiled.
    compiled = learner.compiled and not model.experts_per_token
    kept += size * (queries * (size != attention) + 2 * model.experts_per_token * hidden)
    if model.norms_heads:
        kept += (size if compiled else size + _FP32) * (queries + keys) + _FP32 * (model.heads + model.kv_heads)
    if compiled:
        return kept + _FP32 * hidden + size * (3 * hidden + 3 * model.intermediate_size)
    inputs = 5 if size < _FP32 else 2
    return kept + 4 * _FP32 * hidden + size * (inputs * hidden + 4 * model.intermediate_size)


def head_terms(model: ModelShape, learner: LearnerShape) -> list[Term]:
    """Memory of the LM head in its backward pass, besides its inputs and outputs for each token."""
    weight = ((model.vocab_size, "words"), (model.hidden_size, "numbers"))
    trained = not model.adapter_parameters
    size, terms = learner.compute_bytes, []
    if trained and size < _FP32:
        terms.append(product("the LM head, cast", *weight, (size, "bytes")))
    if trained and not learner.sharded:
        # It is then added to the gradients; FSDP2's assembled gradients include it.
        terms.append(product("gradient of the LM head", *weight, (_FP32, "bytes")))
    tokens = min(learner.head_chunk, learner.tokens_per_pass)
    kept = 0
    if checkpointed_layers(model, learner) == 0:
        kept = min(learner.head_kept // (model.vocab_size * size) // tokens * tokens, learner.tokens_per_pass)
        terms.append(product("logits", (kept, "tokens"), (model.vocab_size, "words"), (size, "bytes")))
    # Products of fewer bytes stand beside the arrays; in fp32 they become one of them. Kept logits include them.
    of_logit = _LOGIT_ARRAYS * _FP32 + (size if size < _FP32 else 0) - (size if kept else 0)
    chunk = [product("chunk of the LM head", (tokens, "tokens"), (model.vocab_size, "words"), (of_logit, "bytes"))]
    if trained and size < _FP32:
        # The chunk's part of the head's gradient, when one array of logits is left; a CPU casts it before adding it.
        part = size if learner.gpus else size + _FP32
        held = f"{tokens:,} tokens x {size} bytes + {model.hidden_size:,} numbers x {part} bytes"
        total = model.vocab_size * (tokens * size + model.hidden_size * part)
        chunk.append(Term("chunk of the LM head", total, f"{model.vocab_size:,} words x ({held})"))
    return [*terms, max(chunk, key=lambda term: term.bytes)]


def _assembled(model: ModelShape, learner: LearnerShape) -> list[Term]:
    """The weights and gradients that FSDP2 assembles: the root's during a pass, and each layer's in turn."""
    if not learner.sharded:
        return []
    root, layer, size = model.root_parameters, model.layer_parameters, learner.compute_bytes
    outside = f"{root:,} outside of the layers x {_FP32} bytes"
    return [
        Term(
            "weights assembled",
            root * _FP32 + _LAYERS_ASSEMBLED * layer * size,
            f"{outside} + {_LAYERS_ASSEMBLED} x {layer:,} of a layer x {size} bytes",
        ),
        Term("their gradients", root * _FP32 + layer * size, f"{outside} + {layer:,} of a layer x {size} bytes"),
    ]


def _sum(terms: tuple[Term, ...]) -> int:
    return sum(term.bytes for term in terms)
