"""Handing new weights to an engine, against a plain copy of the same bytes plus vLLM's own repacking."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
from bench import SMOLLM2, Bench, EngineHandle, alternate, median, num_cores, rounded, timed

KEY = "weight_sync_ratio"


def weight_sync(bench: Bench) -> dict[str, Any]:
    """Seconds from the learner's module to the engine, through Ray's object store / seconds of copy and repacking."""
    repeats = bench.pick(full=9, quick=5, tiny=2)
    ray.init(num_cpus=num_cores(), include_dashboard=False, log_to_driver=False)
    try:
        handle = bench.engine(SMOLLM2)
        module = _learner_module(handle.folder)
        repacking: list[float] = []

        def sync(version: int) -> float:
            with _timed_repacking(repacking):
                return timed(_sync, handle, module, version)[0]

        copy = lambda _: timed(_copy, module)[0]  # noqa: E731
        seconds = alternate({"sync_s": sync, "copy_s": copy}, repeats)
        repacking = repacking[-repeats:]
    finally:
        ray.shutdown()
    pairs = zip(seconds["sync_s"], seconds["copy_s"], repacking, strict=True)
    ratios = [ours / (copied + repacked) for ours, copied, repacked in pairs]
    detail = {
        "sides": ["sync_s", "copy_s", "repacking_s"],
        **{name: rounded(values) for name, values in seconds.items()},
        "repacking_s": rounded(repacking),
        "ratios": rounded(ratios),
        "bytes": sum(array.nbytes for array in _arrays(module).values()),
        "model": bench.model_name(SMOLLM2),
        "repeats": repeats,
    }
    return {KEY: median(ratios), f"{KEY}_detail": detail}


def _learner_module(folder: str):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _arrays(module) -> dict[str, np.ndarray]:
    return {name: weight.detach().cpu().numpy() for name, weight in module.state_dict().items()}


def _sync(handle: EngineHandle, module, version: int) -> None:
    """What the driver and an env runner in another process do."""
    weights = ray.get(ray.put(_arrays(module)))
    handle.call(handle.engine.update_weights, weights.items(), version + 10)


def _copy(module) -> None:
    for array in _arrays(module).values():
        np.copy(array)


@contextlib.contextmanager
def _timed_repacking(seconds: list[float]) -> Iterator[None]:
    """Appends what vLLM's own repacking of linear layers and embeddings took within the block."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    total = 0.0

    def timed_method(method):
        def wrapper(self, layer):
            nonlocal total
            start = time.perf_counter()
            method(self, layer)
            total += time.perf_counter() - start

        return wrapper

    name = "process_weights_after_loading"
    classes = [UnquantizedLinearMethod, UnquantizedEmbeddingMethod]
    originals = [getattr(cls, name) for cls in classes]
    for cls, method in zip(classes, originals, strict=True):
        setattr(cls, name, timed_method(method))
    try:
        yield
    finally:
        for cls, method in zip(classes, originals, strict=True):
            setattr(cls, name, method)
    seconds.append(total)
