"""Ray for tests. Starting it takes seconds, so modules that need no more than two CPUs share one."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

import rllib_arpo

NUM_CPUS = 2
#: Seconds within which the actors of a module that has ended must be gone.
_SETTLE_S = 10

_shared_job: str | None = None


def join_shared_ray() -> None:
    """Ray with two CPUs: the one that an earlier module has left, if all its CPUs are free, or a new one."""
    global _shared_job
    if not (_is_shared() and _is_idle()):
        _start(num_cpus=NUM_CPUS, log_to_driver=False)
        _shared_job = ray.get_runtime_context().get_job_id()
    rllib_arpo.register()


@contextmanager
def own_ray(**settings: Any) -> Iterator[None]:
    """Ray with these settings of `ray.init`, and nobody else's."""
    _start(**settings)
    rllib_arpo.register()
    try:
        yield
    finally:
        ray.shutdown()


def _start(**settings: Any) -> None:
    if ray.is_initialized():
        ray.shutdown()
    ray.init(include_dashboard=False, **settings)


def _is_shared() -> bool:
    return ray.is_initialized() and ray.get_runtime_context().get_job_id() == _shared_job


def _is_idle() -> bool:
    deadline = time.monotonic() + _SETTLE_S
    while (is_busy := ray.available_resources().get("CPU", 0) < NUM_CPUS) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_busy
