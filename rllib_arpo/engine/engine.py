"""The interface that the tree sampler needs from an inference engine.

An engine is synchronous, and one thread drives it: `submit` any number of requests, `step` until they are finished,
`cancel` requests that are no longer wanted. Nothing here imports vLLM.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rllib_arpo.core.reshaping import NO_RESHAPING, Reshaping

#: `Engine.weight_version` of weights that may not be a learner's: the initial ones, or weights that failed a check.
UNKNOWN_WEIGHTS = -1
#: `Engine.weight_version` after an engine has fallen asleep, or while it loads weights, until it has new ones.
NO_WEIGHTS = -2

WINDOWS, ALL = "windows", "all"
#: Which entropies of a turn are kept: of its first k tokens, which fork decisions read, or of all tokens.
RECORD_ENTROPIES = (WINDOWS, ALL)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One turn to generate.

    Attributes:
        request_id: unique among the unfinished requests of the engine.
        prompt_token_ids: the whole prefix (prompt, earlier turns, tool responses).
        max_tokens: the largest number of tokens to generate; >= 1.
        temperature: the sampling temperature; 0 is greedy decoding.
        stop: generation ends after the token that completes one of these strings; that token is kept as sampled.
        entropy_window: k, the number of leading generated tokens whose entropies `EntropyReady` reports; 0: none.
        seed: seeds this request's sampler; None: the engine chooses.
        entropy_estimator: a key of `core.entropy.ENTROPY_ESTIMATORS`.
        record_entropies: one of `RECORD_ENTROPIES`: the tokens whose entropies `Finished` reports.
        reshaping: changes the distribution (evaluation only). Entropies ignore top_p and top_k; a request with a
            repetition penalty must measure none.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    entropy_window: int = 0
    seed: int | None = None
    entropy_estimator: str = "exact"
    record_entropies: str = WINDOWS
    reshaping: Reshaping = NO_RESHAPING

    @property
    def max_entropies(self) -> int:
        """The largest number of leading generated tokens whose entropies are measured."""
        return self.max_tokens if self.record_entropies == ALL else self.entropy_window


@dataclass(frozen=True, slots=True)
class EntropyReady:
    """The first k tokens of a running request are generated. `entropies` is [k] float32, nats.

    Sent once per request, in the engine step in which the k-th token arrives. A request that ends earlier sends only
    `Finished`.
    """

    request_id: str
    entropies: np.ndarray


@dataclass(frozen=True, slots=True)
class Finished:
    """A request is finished.

    Attributes:
        token_ids: [n] int32, as sampled, the end-of-sequence or stop token included.
        log_probs: [n] float32, the tokens' log-probs in the reshaped distribution from which they were sampled; with
            temperature 0, at temperature 1.
        entropies: [min(k, n)] float32 nats; [n] with `record_entropies="all"`.
        weight_versions: [n] int32, the version of the weights that sampled each token; it changes within a request if
            `update_weights` is called meanwhile.
        finish_reason: "stop" (end of sequence or a stop string), "length" (max_tokens) or "error" (the engine failed
            this request; the arrays hold the tokens before that).
        num_cached_tokens: prompt tokens that came from the prefix cache when the request started.
    """

    request_id: str
    token_ids: np.ndarray
    log_probs: np.ndarray
    entropies: np.ndarray
    weight_versions: np.ndarray
    finish_reason: str
    num_cached_tokens: int = 0


EngineEvent = EntropyReady | Finished


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of every engine; `engine_kwargs` goes to the implementation (for vLLM: `EngineArgs`).

    Attributes:
        model_name_or_path: a Hugging Face id or folder.
        dtype: "bfloat16", "float16" or "float32".
        max_context_tokens: the limit of prompt plus response.
        num_threads: CPU threads for the engine; None leaves the default.
        can_sleep: whether `sleep` will be called.
        weight_transfer: the backend of vLLM's weight transfer; None: no transfer.
        shares_gpu: whether a learner or another engine uses its GPU as well.
        seed: the engine's seed.
    """

    model_name_or_path: str
    dtype: str = "bfloat16"
    max_context_tokens: int = 4096
    num_threads: int | None = None
    seed: int = 0
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    can_sleep: bool = False
    weight_transfer: str | None = None
    shares_gpu: bool = False


class Engine(Protocol):
    """A continuous-batching inference engine.

    Attributes:
        vocab_size: V, the width of the logits.
        weight_version: the version of the weights in use, or `UNKNOWN_WEIGHTS`, or `NO_WEIGHTS`.
        has_model: whether `score` computes with the weights that `update_weights` was given; a scripted engine has no
            model.
    """

    vocab_size: int
    weight_version: int
    has_model: bool

    def submit(self, request: GenerationRequest) -> None:
        """Queues a request; it joins the running batch at the next step."""

    def step(self) -> list[EngineEvent]:
        """Advances every running request by one token and returns what happened.

        An engine that runs a step ahead returns what happened in the step before.
        """

    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""

    def cancel(self, request_id: str) -> None:
        """Drops a request; no later event has its id. Unknown ids are ignored."""

    def update_weights(self, weights: Iterable[tuple[str, np.ndarray]], version: int) -> None:
        """Replaces all weights (Hugging Face names, tied ones included) and drops all results of the old weights.

        Call it between two steps. Running requests keep their tokens and their samplers; the new weights sample their
        next token given the whole prefix.

        Args:
            weights: of the engine's type or fp32; uint16 holds the bits of bfloat16 (`checkpoint_names.as_array`).
            version: the version of these weights.

        Raises:
            ValueError: a name is unknown or missing, or a shape is wrong; nothing was loaded.
        """

    def score(self, token_ids: list[int]) -> np.ndarray:
        """Log-probs [n - 1] float32 of token_ids[1:] at temperature 1, with the weights in use; for checks.

        Requests may be running; the next `step` reports what happens to them meanwhile.
        """

    def sleep(self, level: int) -> None:
        """Frees the GPU's memory, the prefix cache included, for other users. A sleeping engine can only wake up.

        Requests that still run are cancelled: their questions have ended, and the next step would have dropped them.
        `weight_version` becomes `NO_WEIGHTS`, so the next push of weights does not skip this engine, and wakes it.

        Args:
            level: 1 keeps the weights in the CPU's memory, 2 drops them.

        Raises:
            RuntimeError: the engine was not built with `can_sleep`.
        """

    def wake_up(self) -> None:
        """Takes the GPU's memory back; after level 2 the engine still needs new weights. No effect if it is awake."""

    def close(self) -> None:
        """Frees the engine's memory and processes; can be called twice."""


class TransferEngine(Engine, Protocol):
    """An engine that can take its weights from the learner's GPU (`EngineConfig.weight_transfer`)."""

    def check_weights(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks the weights' names and shapes: in a transfer, one engine that fails leaves all others waiting.

        Raises:
            ValueError: a name is missing or unknown, or a shape is wrong.
        """

    def join_transfer(self, init_info: dict[str, Any]) -> None:
        """Connects the engine with a learner, for any number of transfers; ends an earlier connection.

        Args:
            init_info: vLLM's arguments of `init_weight_transfer_engine`.
        """

    def receive_weights(self, update_info: dict[str, Any], version: int) -> None:
        """Does what `update_weights` does, with weights that the learner sends meanwhile.

        Args:
            update_info: vLLM's arguments of `update_weights`.
        """
