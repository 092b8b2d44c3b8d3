"""How many CPU threads an engine gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(num_threads: int | None) -> Iterator[None]:
    """Gives this process, and workers that start meanwhile, `num_threads` CPU threads; None leaves their number."""
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
