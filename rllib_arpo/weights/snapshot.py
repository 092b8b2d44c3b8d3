"""The learner's weights at one version, with a probe that tells whether an engine computes with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from rllib_arpo.engine.engine import UNKNOWN_WEIGHTS
from rllib_arpo.weights.array_parts import ArrayParts

if TYPE_CHECKING:
    from rllib_arpo.engine.engine import Engine, TransferEngine

#: Length of the probe, in tokens.
PROBE_TOKENS = 8
#: Compute dtype -> largest difference between the learner's and the engine's log-probs of the probe, nats.
#:
#: Random tokens are unlikely ones, whose large logits round coarsely. SmolLM2-135M, largest over 40 probes: 2e-4 in
#: float32, 0.6 in float16, 0.8 in bfloat16; a head of other weights is off by several nats.
PROBE_TOLERANCES = {"float32": 1e-3, "float64": 1e-3, "float16": 1.0, "bfloat16": 2.0}


class WeightSyncError(RuntimeError):
    """An engine did not take the learner's weights, or does not compute with them."""


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """The weights of one version.

    Attributes:
        version: see `ARPOTorchLearner.weight_version`.
        weights: Hugging Face name -> array of the engine's type (`as_array`); tied weights are one array under two
            names. From a learner of a LoRA: the adapter's, fp32, which the env runner merges into the base. In parts,
            until the env runner has received them (`received`). None: they have got into the engine by vLLM's weight
            transfer.
        probe: [n] int32 token ids.
        probe_log_probs: [n - 1] float32, of probe[1:] at temperature 1, as the learner computes them with `weights`.
    """

    version: int
    weights: dict[str, np.ndarray] | ArrayParts | None
    probe: np.ndarray
    probe_log_probs: np.ndarray

    def received(self) -> WeightSnapshot:
        """With the arrays themselves, if they come in parts."""
        return replace(self, weights=self.weights.get()) if isinstance(self.weights, ArrayParts) else self


def probe_tokens(vocab_size: int, max_context_tokens: int) -> np.ndarray:
    """[n] int32 token ids from all over the vocabulary, the same at every call."""
    length = min(PROBE_TOKENS, max_context_tokens - 1)
    return np.random.default_rng(vocab_size).integers(vocab_size, size=length, dtype=np.int32)


def load_and_verify(engine: Engine, snapshot: WeightSnapshot, dtype: str) -> None:
    """Loads the weights of a received snapshot into the engine, and compares its log-probs of the probe.

    Runs in the engine's thread. An engine without a model has nothing to compare (`Engine.has_model`).

    Args:
        dtype: the compute dtype of engine and learner.

    Raises:
        ValueError: the names or shapes are wrong; nothing was loaded.
        WeightSyncError: the log-probs differ; the engine's version is `UNKNOWN_WEIGHTS`.
    """
    if snapshot.weights is None:
        cast("TransferEngine", engine).end_transfer(snapshot.version)
    else:
        engine.update_weights(cast("dict[str, np.ndarray]", snapshot.weights).items(), snapshot.version)
    if not engine.has_model:
        return
    computed = engine.score(snapshot.probe.tolist())
    difference = float(np.abs(computed - snapshot.probe_log_probs).max(initial=0.0))
    # NaN is not within any tolerance.
    if not difference <= PROBE_TOLERANCES[dtype]:
        engine.weight_version = UNKNOWN_WEIGHTS
        raise WeightSyncError(
            f"the engine's log-probs of a probe differ by {difference:.3g} nats from the learner's, more than "
            f"{PROBE_TOLERANCES[dtype]:g} ({dtype}): it does not compute with the learner's weights"
        )
