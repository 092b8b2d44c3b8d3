"""The workers that tests start are forked and are workers like any other; without the warm process they start, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray
from ray._private.workers import default_worker, setup_worker

from tests.helpers import warm_workers


@ray.remote(num_cpus=0.1)
class Asked:
    def process(self) -> tuple[int, str | None, bool]:
        """(parent, a variable, whether it leads a group of processes)."""
        return os.getppid(), os.environ.get("OWN"), os.getpgid(0) == os.getpid()


def test_a_worker_is_forked_unless_it_has_an_environment_of_its_own(ray_cluster):
    usual, again = Asked.remote(), Asked.remote()
    own = Asked.options(runtime_env={"env_vars": {"OWN": "1"}}).remote()
    (parent, _, _), (_, variable, leads) = ray.get([usual.process.remote(), again.process.remote()])
    assert "warm_workers.py" in Path(f"/proc/{parent}/cmdline").read_text()
    assert (variable, leads) == (None, True)
    parent, variable, _ = ray.get(own.process.remote())
    assert "raylet" in Path(f"/proc/{parent}/cmdline").read_text()
    assert variable == "1"


@pytest.mark.parametrize("more", [[], ["--serialized-runtime-env-context={}"]], ids=["gone", "own environment"])
def test_without_the_warm_process_ray_starts_its_worker_itself(monkeypatch, more):
    monkeypatch.setenv(warm_workers.SOCKET, "nobody listens")
    started = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments[1:]))
    arguments = [default_worker.__file__, "--worker-id=1", *more, "--language=PYTHON"]
    warm_workers.request(arguments)
    assert started == [[setup_worker.__file__, *arguments]]
