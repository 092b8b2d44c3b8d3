"""A restarted env runner is a new process by the time RLlib takes it back into service."""

import threading
import time

import pytest
import ray
from ray.rllib.utils.actor_manager import FaultAwareApply, FaultTolerantActorManager

from rllib_arpo.faults import restart_env_runner


@ray.remote(max_restarts=-1)
class _EnvRunner(FaultAwareApply):
    def process(self) -> str:
        return ray.get_runtime_context().get_worker_id()

    def hang(self) -> None:
        threading.Event().wait()


def _wait_until_healthy(manager: FaultTolerantActorManager) -> None:
    limit = time.monotonic() + 60
    while not manager.probe_unhealthy_actors(mark_healthy=True):
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.parametrize("hangs", [False, True])
def test_only_the_new_process_is_taken_back_into_service(ray_cluster, hangs):
    runner = _EnvRunner.options(num_cpus=0).remote()
    manager = FaultTolerantActorManager([runner])
    before = ray.get(runner.process.remote())
    if hangs:
        runner.hang.remote()
    restart_env_runner(manager, 0, timeout_s=1.0 if hangs else 30.0)
    assert not manager.is_actor_healthy(0)
    _wait_until_healthy(manager)
    assert ray.get(runner.process.remote()) != before
    ray.kill(runner)
