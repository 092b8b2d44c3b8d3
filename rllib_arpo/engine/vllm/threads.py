"""How many CPU threads an engine gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(num_threads: int | None) -> Iterator[None]:
    """Gives this process and the workers that start meanwhile so many CPU threads; None leaves what they have."""
    set_num_threads, inherited = torch.set_num_threads, os.environ.get("OMP_NUM_THREADS")
    if num_threads is not None:
        # The variable is read once, when torch is loaded; Ray sets it to the actor's number of CPUs.
        set_num_threads(num_threads)
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        # The CPU worker replaces it by a function that does nothing, and where there are worker processes vLLM leaves
        # one thread to this one: neither is meant for the learner that may live here too.
        torch.set_num_threads = set_num_threads
        set_num_threads(num_threads)
        os.environ.pop("OMP_NUM_THREADS", None)
        if inherited is not None:
            os.environ["OMP_NUM_THREADS"] = inherited
