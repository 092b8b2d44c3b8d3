"""Sends the learner's weights of one version in parts, and probes whether an engine computes with them.

While one part, about a layer, is stored, the next one leaves the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import ray

from rllib_arpo.engine.engine import UNKNOWN_WEIGHTS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rllib_arpo.engine.engine import Engine, TransferEngine


#: A part with this many bytes is complete: half a layer of a 7B model in 16 bits.
PART_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ArrayParts:
    """Weights in Ray's object store.

    Attributes:
        parts: each is a dict of arrays by name; no name is in two parts.
    """

    parts: tuple[ray.ObjectRef, ...]

    def get(self) -> dict[str, np.ndarray]:
        """All weights; the arrays are the object store's own memory."""
        return {name: array for part in ray.get(list(self.parts)) for name, array in part.items()}


def put_weights(weights: Mapping[str, Tensor], dtype: torch.dtype | None, part_bytes: int = PART_BYTES) -> ArrayParts:
    """Puts weights into the object store; from a GPU at most three parts at a time are in the CPU's memory beside it.

    If the tensors are split, all learners must call this function; the first one puts them, the others put nothing.

    Args:
        weights: by name; a tied one, which has several names, travels once.
        dtype: the type to which they are cast on their device; None: their own.
    """
    return ArrayParts(tuple(ray.put(part) for part in arrays_in_parts(weights, dtype, part_bytes)))


def arrays_in_parts(
    weights: Mapping[str, Tensor], dtype: torch.dtype | None, part_bytes: int = PART_BYTES
) -> Iterator[dict[str, np.ndarray]]:
    """The weights as arrays on the CPU (`as_array`), by name; views of tensors that are already there in this type.

    From a GPU they come through pinned memory, which torch reuses once a part is dropped.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    is_split = any(isinstance(weight, DTensor) for weight in weights.values())
    keeps = not is_split or dist.get_rank() == 0
    ahead: _Leaving | None = None
    for part in _parts(weights, dtype, part_bytes):
        leaving = _Leaving(part, dtype, keeps=keeps)
        if keeps and ahead is not None:
            yield ahead.arrays()
        ahead = leaving
    if keeps and ahead is not None:
        yield ahead.arrays()


def _parts(weights: Mapping[str, Tensor], dtype: torch.dtype | None, part_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Splits weights into parts, in their order; a tied weight comes at its first name, under all of its names."""
    names: dict[int, list[str]] = {}
    for name, weight in weights.items():
        names.setdefault(id(weight), []).append(name)
    part: dict[str, Tensor] = {}
    size = 0
    for weight in {id(weight): weight for weight in weights.values()}.values():
        part |= dict.fromkeys(names[id(weight)], weight)
        size += weight.numel() * (dtype or weight.dtype).itemsize
        if size >= part_bytes:
            yield part
            part, size = {}, 0
    if part:
        yield part


class _Leaving:
    """One part of the weights while it is copied to the CPU.

    All learners assemble tensors that are split over them; only the one with `keeps` stores them.
    """

    def __init__(self, part: Mapping[str, Tensor], dtype: torch.dtype | None, *, keeps: bool):
        import torch

        from rllib_arpo.policy.sharded_state import whole_tensors

        distinct = {str(id(weight)): weight for weight in part.values()}
        copies = {key: _to_cpu(weight) for key, weight in whole_tensors(distinct, dtype) if keeps}
        self._copies = {name: copies[str(id(weight))] for name, weight in part.items() if keeps}
        device = next(iter(part.values())).device
        self._arrived = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def arrays(self) -> dict[str, np.ndarray]:
        from rllib_arpo.policy.checkpoint_names import as_array

        if self._arrived is not None:
            self._arrived.synchronize()
        arrays = {id(copy): as_array(copy) for copy in self._copies.values()}
        return {name: arrays[id(copy)] for name, copy in self._copies.items()}


def _to_cpu(tensor: Tensor) -> Tensor:
    """The tensor itself if it is on the CPU; otherwise a copy in pinned memory, which may arrive later."""
    import torch

    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


#: Length of the probe, in tokens.
PROBE_TOKENS = 8
#: Compute dtype -> largest difference between the learner's and the engine's log-probs of the probe, nats.
#:
#: Random tokens are unlikely, and their large logits are rounded coarsely. With SmolLM2-135M the largest differences
#: over 40 probes were 2e-4 (float32), 0.6 (float16) and 0.8 (bfloat16); with other weights in the head, several nats.
PROBE_TOLERANCES = {"float32": 1e-3, "float64": 1e-3, "float16": 1.0, "bfloat16": 2.0}


class WeightSyncError(RuntimeError):
    """An engine did not take the learner's weights, or does not compute with them."""


@dataclass(frozen=True, slots=True)
class IncomingWeights:
    """Weights that the learner sends by vLLM's weight transfer, while the engine loads them.

    Attributes:
        update_info: how the engine receives them (`TransferEngine.receive_weights`).
    """

    update_info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """The weights of one version.

    Attributes:
        version: see `ARPOTorchLearner.weight_version`.
        weights: Hugging Face name -> array of the engine's type (`as_array`); tied weights are one array under two
            names. A LoRA's learner sends the adapter's weights, fp32, and the env runner merges them into the base.
            They are in parts until the env runner has received them (`received`). None: the learner has not added
            them yet.
        probe: [n] int32 token ids.
        probe_log_probs: [n - 1] float32, of probe[1:] at temperature 1, as the learner computes them with `weights`.
    """

    version: int
    weights: dict[str, np.ndarray] | ArrayParts | IncomingWeights | None
    probe: np.ndarray
    probe_log_probs: np.ndarray

    def received(self) -> WeightSnapshot:
        """The same snapshot with the arrays themselves in place of parts."""
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
    if isinstance(snapshot.weights, IncomingWeights):
        cast("TransferEngine", engine).receive_weights(snapshot.weights.update_info, snapshot.version)
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
