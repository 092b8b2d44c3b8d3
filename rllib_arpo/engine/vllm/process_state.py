"""Sets up and cleans up the processes in which vLLM computes, where vLLM 0.32 itself does not."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from vllm.platforms import current_platform


@contextmanager
def readable_globals() -> Iterator[None]:
    """Within this context Flask's globals (`request`, `current_app`, ...) have values, if Flask is loaded.

    vLLM's CPU build looks at every global of every module, and Flask's raise outside of a request. MLflow's server
    loads Flask, and so may other code that shares a process with an engine.
    """
    flask = sys.modules.get("flask")
    if flask is None:
        yield
        return
    with flask.Flask(__name__).test_request_context():
        yield


@contextmanager
def cpu_threads(num_threads: int | None) -> Iterator[None]:
    """Gives this process, and workers that start meanwhile, `num_threads` CPU threads; None changes nothing."""
    set_num_threads, inherited = torch.set_num_threads, os.environ.get("OMP_NUM_THREADS")
    if num_threads is not None:
        # A process reads the variable once, when it loads torch; Ray sets it to the actor's number of CPUs.
        set_num_threads(num_threads)
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        # vLLM's CPU worker replaces `torch.set_num_threads` by a function that does nothing, and with worker processes
        # vLLM leaves one thread to this process. Neither must affect a learner in this process.
        torch.set_num_threads = set_num_threads
        set_num_threads(num_threads)
        os.environ.pop("OMP_NUM_THREADS", None)
        if inherited is not None:
            os.environ["OMP_NUM_THREADS"] = inherited


def allow_amx(_worker: object) -> None:
    """Runs in vLLM's worker: asks Linux for AMX's registers.

    vLLM's attention in bfloat16 uses the registers on CPUs that have them, but does not ask for them (read in 0.32):
    SIGILL then ends the process, unless oneDNN has computed a product before.
    """
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def unpack_experts(worker: Any) -> None:
    """Runs in vLLM's worker before it loads new weights: makes it pack the experts' weights for its CPU kernel.

    vLLM packs (and pads) them only when it makes the kernel, and keeps the kernel when weights are loaded again: the
    kernel would take plain weights for packed ones. Without a kernel vLLM makes a new one. GPU kernels need no packing,
    and CUDA graphs hold on to them.
    """
    if not current_platform.is_cpu():
        return
    for module in worker.model_runner.get_model().modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def forget_reloads(worker: Any) -> None:
    """Runs in vLLM's worker: removes vLLM's records of reloaded layers, which hold the layers (read in 0.32).

    A process would otherwise keep the weights of every engine that it has closed.
    """
    with suppress(ImportError):
        from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO

        for layer in worker.get_model().modules():
            LAYERWISE_INFO.pop(layer, None)


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """The files of shared memory that these processes, like vLLM, have opened with Python's `SharedMemory`."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            found.update(re.findall(r"/dev/shm/psm_\w+", Path(f"/proc/{pid}/maps").read_text()))
    return set(map(Path, found))
