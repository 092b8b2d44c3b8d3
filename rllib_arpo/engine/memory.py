"""Computes the memory of an engine on its GPUs: pure arithmetic, in which each number comes with its product.

An engine with a GPU of its own measures its memory besides weights and KV cache, and the cache gets the rest of its
part. On a shared GPU this measurement would count its neighbours' memory (vLLM#55827, vLLM#56830): there the cache gets
what this arithmetic leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rllib_arpo.policy.model_shape import ModelShape

#: Bytes of a logit while tokens are sampled.
_FP32 = 4
#: How many arrays of all logits exist then: the model's, logits in fp32, log-probs, probabilities, random numbers.
_LOGIT_ARRAYS = 5
#: How many numbers a layer holds per token, in units of the hidden size (input, residual, queries, output) and of the
#: intermediate size (gate, up, their product).
_HIDDEN, _INTERMEDIATE = 4, 3
#: Bytes set aside for CUDA's context, libraries and graphs, which we cannot compute. `tests/gpu/test_engine.py`
#: measures whether an engine stays within its part.
RESERVE = 2 << 30
#: vLLM takes its large batch on GPUs of at least this many bytes (except an A100), otherwise its small one; batches are
#: in tokens and in sequences.
_LARGE_GPU = 70 << 30
_LARGE_BATCH, _SMALL_BATCH = (16384, 1024), (8192, 256)


@dataclass(frozen=True, slots=True)
class Term:
    """A number of bytes, and how it was computed."""

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The sizes of the engines.

    Attributes:
        weight_bytes, kv_bytes: bytes of a weight, and of a number in the KV cache.
        utilization: the engine's part of each of its GPUs.
        number: the number of engines.
        gpus: GPUs of an engine in a process of its own; a fraction means a shared GPU, 0 the CPU.
        in_learner: whether one engine is in the learner's process, on the learner's GPU if there is one.
        parallel: how many GPUs share the weights and the KV cache of an engine.
        kv_cache: bytes of the KV cache, if the configuration sets them; None: the rest of `utilization`.
        sleeps: whether the engines give their memory to the learner during an update.
        shares_gpu: whether a learner or another engine uses the same GPU; the KV cache is then computed
            (`engine_need`), not measured.
        batched_tokens, sequences: the limits of a step; None: vLLM's defaults on a GPU of this size.
        evaluation: the engines of evaluation, if they have sizes of their own; otherwise `number` includes them.
    """

    weight_bytes: int
    kv_bytes: int
    utilization: float
    context_tokens: int
    number: int = 1
    gpus: float = 1.0
    in_learner: bool = False
    parallel: int = 1
    kv_cache: int | None = None
    sleeps: bool = False
    shares_gpu: bool = False
    batched_tokens: int | None = None
    sequences: int | None = None
    evaluation: EngineShape | None = None

    @property
    def separate(self) -> int:
        """The number of engines in processes of their own."""
        return self.number - self.in_learner


@dataclass(frozen=True, slots=True)
class EngineNeed:
    """The memory of an engine on each of its GPUs.

    Attributes:
        total: weights, KV cache and the engine's own values.
        weights: the weights on one GPU.
        own: on a shared GPU the values of one step and CUDA's memory; otherwise empty: the engine measures them and
            takes them from the cache.
        cache: bytes that are left for the KV cache; negative if the rest is too large.
        token: one token's keys and values.
        state: the recurrent states of a trajectory; no bytes if no layer has one.
        tokens: how many tokens the cache holds.
        trajectories: how many trajectories of the greatest length the cache holds.
        evaluation: the memory of an evaluation engine that has sizes of its own.
    """

    total: Term
    weights: Term
    own: tuple[Term, ...]
    cache: int
    token: Term
    state: Term
    tokens: int
    trajectories: int
    evaluation: EngineNeed | None = None


def engine_weights(model: ModelShape, engine: EngineShape) -> Term:
    base = ((model.parameters, "parameters"), (engine.weight_bytes, "bytes"))
    return product("weights", *base, parts=engine.parallel, whose="GPUs")


def engine_need(model: ModelShape, engine: EngineShape, gpu_memory: int) -> EngineNeed:
    """The memory of an engine on GPUs of `gpu_memory` bytes each."""
    weights, token, state = engine_weights(model, engine), kv_token(model, engine), state_of_trajectory(model, engine)
    if engine.kv_cache is None:
        part = int(engine.utilization * gpu_memory)
        total = Term("its part", part, f"{engine.utilization:g} of the GPU's {gpu_memory:,} bytes")
    else:
        part = weights.bytes + engine.kv_cache
        total = Term("its part", part, f"weights and {engine.kv_cache:,} bytes of KV cache")
    computed = engine.shares_gpu and engine.kv_cache is None
    own = own_terms(model, engine, gpu_memory) if computed else ()
    cache = total.bytes - weights.bytes - sum(term.bytes for term in own)
    tokens = max(cache, 0) // token.bytes
    trajectories = max(cache, 0) // (engine.context_tokens * token.bytes + state.bytes)
    evaluation = None if engine.evaluation is None else engine_need(model, engine.evaluation, gpu_memory)
    return EngineNeed(total, weights, own, cache, token, state, tokens, trajectories, evaluation)


def own_terms(model: ModelShape, engine: EngineShape, gpu_memory: int) -> tuple[Term, ...]:
    """The memory that an engine needs besides weights and KV cache in its largest step."""
    of_gpu = _LARGE_BATCH if gpu_memory >= _LARGE_GPU else _SMALL_BATCH
    tokens, sequences = engine.batched_tokens or of_gpu[0], engine.sequences or of_gpu[1]
    layer = _HIDDEN * model.hidden_size + _INTERMEDIATE * math.ceil(model.intermediate_size / engine.parallel)
    values = ((tokens, "tokens"), (layer, "numbers"), (engine.weight_bytes, "bytes"))
    logits = ((_LOGIT_ARRAYS, "arrays"), (sequences, "sequences"), (model.vocab_size, "logits"), (_FP32, "bytes"))
    return (
        product("values of a layer", *values),
        product("logits of a step", *logits),
        Term("set aside", RESERVE, "CUDA's context, libraries and graphs"),
    )


def computed_kv_cache(model: ModelShape, engine: EngineShape, gpu_memory: int) -> int:
    """Bytes of the KV cache of an engine that shares GPUs of `gpu_memory` bytes.

    Raises:
        ValueError: its part of the GPU has no room for one trajectory of the greatest length.
    """
    need = engine_need(model, engine, gpu_memory)
    if need.trajectories < 1:
        rest = need.total.bytes - need.cache
        raise ValueError(
            f"engine_kwargs['gpu_memory_utilization']={engine.utilization:g}: the engine gets {need.total.bytes:,} "
            f"bytes and needs {rest:,} besides its KV cache, in which a trajectory of {engine.context_tokens:,} tokens "
            f"takes {engine.context_tokens * need.token.bytes + need.state.bytes:,}; `rllib-arpo doctor` shows the sum."
        )
    return need.cache


def kv_cache_bytes(dtype: str, weight_bytes: int) -> int:
    """Bytes of a number in a KV cache of the type that vLLM calls `dtype`."""
    return 1 if dtype.startswith("fp8") else weight_bytes


def kv_token(model: ModelShape, engine: EngineShape) -> Term:
    """One token's keys and values on each GPU; if there are more GPUs than heads, several hold the same head."""
    heads = math.ceil(model.kv_heads / engine.parallel)
    layers = (model.layers - model.state_layers, "layers")
    sizes = ((2, "keys and values"), layers, (heads, "heads"), (model.head_dim, "numbers"))
    return product("a token", *sizes, (engine.kv_bytes, "bytes"))


def state_of_trajectory(model: ModelShape, engine: EngineShape) -> Term:
    """The recurrent states of a trajectory on each GPU, in fp32, as Qwen3.5 has them in vLLM."""
    sizes = ((model.state_layers, "layers"), (model.state_size, "numbers"), (_FP32, "bytes"))
    return product("a state", *sizes, parts=engine.parallel, whose="GPUs")


def product(name: str, *factors: tuple[int, str], parts: int = 1, whose: str = "learners") -> Term:
    """The product of numbers with their units, divided among `parts`."""
    units = [(number, unit.removesuffix("s") if number == 1 else unit) for number, unit in factors]
    formula = " x ".join(f"{number:,} {unit}" for number, unit in units)
    total = math.ceil(math.prod(number for number, _ in factors) / parts)
    return Term(name, total, formula if parts == 1 else f"{formula} / {parts} {whose}")
