"""Handing new weights to an engine, against a plain copy of the same bytes plus vLLM's own repacking."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray

from release.benchmarks.common.bench import SMOLLM2, Bench, EngineHandle, alternate, num_cores, ratio, timed
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.weights.snapshot import WeightSnapshot, load_and_verify, probe_tokens


def weight_sync(bench: Bench) -> dict[str, Any]:
    """Seconds from the learner's module to a verified engine / seconds of the copy and of the repacking in that sync.

    The weights go through Ray's object store, as between processes. A sync is all of it: probe of the learner, store,
    check of the names, loading, repacking, dropping the cache, probe of the engine.
    """
    repeats = bench.pick(full=9, quick=5, tiny=2)
    ray.init(num_cpus=num_cores(), include_dashboard=False, log_to_driver=False)
    try:
        handle = bench.engine(SMOLLM2)
        settings = {"model_name_or_path": handle.folder, "dtype": "float32", "temperature": 1.0}
        module = LLMRLModule(model_config=settings)
        # Tied weights once.
        weights = list({id(array): array for array in module.weight_views().values()}.values())
        repacking: list[float] = []

        def sync(version: int) -> float:
            with _timed_repacking(repacking):
                return timed(_through_store, handle, module, version)[0]

        seconds = alternate({"sync_s": sync, "copy_s": lambda _: timed(_copy, weights)[0]}, repeats)
    finally:
        ray.shutdown()
    plain = [copied + repacked for copied, repacked in zip(seconds["copy_s"], repacking[-repeats:], strict=True)]
    measured = {"sync_s": seconds["sync_s"], "copy_and_repacking_s": plain}
    about = {"bytes": sum(array.nbytes for array in weights), "model": bench.model_name(SMOLLM2)}
    return ratio("weight_sync_ratio", "sync_s", "copy_and_repacking_s", measured, **about)


def _snapshot(module: LLMRLModule, version: int) -> WeightSnapshot:
    """What `ARPOTorchLearner.weight_snapshot` makes."""
    probe = probe_tokens(module.vocab_size, 2048)
    return WeightSnapshot(version + 10, module.weight_views(), probe, module.score(probe))


def _through_store(handle: EngineHandle, module: LLMRLModule, version: int) -> None:
    snapshot = ray.get(ray.put(_snapshot(module, version)))
    handle.call(load_and_verify, handle.engine, snapshot, "float32")


def _copy(arrays: list[np.ndarray]) -> None:
    """Into fresh memory, all of it held at the end, as a second set of weights is."""
    copies = [np.copy(array) for array in arrays]
    del copies


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
