"""The workers that tests start are forked and are workers like any other; without the warm process they start, too."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
import ray
from ray._private.workers import default_worker, setup_worker
from ray._raylet import FunctionID

from tests.helpers import warm_workers


@ray.remote(num_cpus=0.1)
class Asked:
    def process(self) -> tuple[int, str | None, bool]:
        """(parent, a variable, whether it leads a group of processes)."""
        return os.getppid(), os.environ.get("OWN"), os.getpgid(0) == os.getpid()


@ray.remote(num_cpus=0.1)
class Draws:
    def draw(self) -> list[str | float]:
        """Random ids of the main thread and of twenty others, and a random number."""
        drawn = [random.random(), FunctionID.from_random().hex()]
        for _ in range(20):
            thread = threading.Thread(target=lambda: drawn.append(FunctionID.from_random().hex()))
            thread.start()
            thread.join()
        return drawn


def test_forked_workers_draw_different_random_ids(ray_cluster):
    actors = [Draws.remote() for _ in range(4)]
    drawn = [number for of_actor in ray.get([actor.draw.remote() for actor in actors]) for number in of_actor]
    assert len(drawn) == len(set(drawn)) == 4 * 22


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
