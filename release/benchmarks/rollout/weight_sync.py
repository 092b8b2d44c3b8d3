"""Handing new weights to an engine, against a plain copy of the same bytes plus vLLM's own repacking."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import ray

from release.benchmarks.common.bench import SMOLLM2, Bench, EngineHandle, alternate, median, num_cores, rounded, timed
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.weights.snapshot import WeightSnapshot, load_and_verify, probe_tokens

KEY = "weight_sync_ratio"


def weight_sync(bench: Bench) -> dict[str, Any]:
    """Seconds from the learner's module to a verified engine / seconds of the copy and of the repacking in that sync.

    The key's figure is the sync through Ray's object store, as between processes; `in_process_ratios` are those where
    learner and engine share a process. A sync is all of it: probe of the learner, store, check of the names, loading,
    repacking, dropping the cache, probe of the engine.
    """
    repeats = bench.pick(full=9, quick=5, tiny=2)
    ray.init(num_cpus=num_cores(), include_dashboard=False, log_to_driver=False)
    try:
        handle = bench.engine(SMOLLM2)
        settings = {"model_name_or_path": handle.folder, "dtype": "float32", "temperature": 1.0}
        module = LLMRLModule(model_config=settings)
        weights = _distinct(module.weight_views())
        syncs = {"sync_s": lambda version: _through_store(handle, module, version)}
        syncs["in_process_s"] = lambda version: _in_process(handle, module, version)
        repacking: dict[str, list[float]] = {name: [] for name in syncs}
        sides = {name: _with_repacking(sync, repacking[name]) for name, sync in syncs.items()}
        sides["copy_s"] = lambda _: timed(_copy, weights)[0]
        seconds = alternate(sides, repeats)
    finally:
        ray.shutdown()
    ratios = {name: _ratios(seconds[name], seconds["copy_s"], repacking[name][-repeats:]) for name in syncs}
    detail = {
        "sides": ["sync_s", "copy_s", "repacking_s"],
        **{name: rounded(values) for name, values in seconds.items()},
        "repacking_s": rounded(repacking["sync_s"][-repeats:]),
        "ratios": rounded(ratios["sync_s"]),
        "in_process_ratios": rounded(ratios["in_process_s"]),
        "in_process_ratio": round(median(ratios["in_process_s"]), 4),
        "bytes": sum(array.nbytes for array in weights),
        "model": bench.model_name(SMOLLM2),
        "repeats": repeats,
    }
    return {KEY: median(ratios["sync_s"]), f"{KEY}_detail": detail}


def _snapshot(module: LLMRLModule, version: int) -> WeightSnapshot:
    """What `ARPOTorchLearner.weight_snapshot` makes."""
    probe = probe_tokens(module.vocab_size, 2048)
    return WeightSnapshot(version + 10, module.weight_views(), probe, module.score(probe))


def _through_store(handle: EngineHandle, module: LLMRLModule, version: int) -> float:
    def sync() -> None:
        snapshot = ray.get(ray.put(_snapshot(module, version)))
        handle.call(load_and_verify, handle.engine, snapshot, "float32")

    return timed(sync)[0]


def _in_process(handle: EngineHandle, module: LLMRLModule, version: int) -> float:
    return timed(lambda: handle.call(load_and_verify, handle.engine, _snapshot(module, version), "float32"))[0]


def _distinct(weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Tied weights once."""
    return list({id(array): array for array in weights.values()}.values())


def _copy(arrays: list[np.ndarray]) -> None:
    """Into fresh memory, all of it held at the end, as a second set of weights is."""
    copies = [np.copy(array) for array in arrays]
    del copies


def _ratios(sync: list[float], copy: list[float], repacking: list[float]) -> list[float]:
    return [ours / (copied + repacked) for ours, copied, repacked in zip(sync, copy, repacking, strict=True)]


def _with_repacking(sync: Callable[[int], float], seconds: list[float]) -> Callable[[int], float]:
    """`sync`, which also appends what vLLM's own repacking took within it."""

    def measured(version: int) -> float:
        with _timed_repacking(seconds):
            return sync(version)

    return measured


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
