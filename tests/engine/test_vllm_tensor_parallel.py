"""A run with vLLM whose env runner has an engine in two worker processes.

The engine's GPUs come from Ray, its numbers are those of the model. All tests use one start of the algorithm, in their
order; the last one kills a worker.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.rllib.env import multi_agent_env_runner

from rllib_arpo.engine.engine import GenerationRequest
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from tests.engine.conftest import ENGINE_KWARGS
from tests.helpers.clusters import own_ray
from tests.helpers.configs import small_config
from tests.integration.conftest import record_batches

pytestmark = pytest.mark.slow

PROMPT = [10 + i % 40 for i in range(70)]


class EnvRunnerWithoutCuda(ARPOEnvRunner):
    """RLlib looks for a CUDA device wherever an env runner has GPUs; this one's engine runs on the CPU."""

    def __init__(self, config, **kwargs):
        multi_agent_env_runner.get_device = lambda *_args: "cpu"
        super().__init__(config, **kwargs)


@pytest.fixture(scope="module")
def algorithm(llama_folder):
    """Ray has two GPUs in its books, which nothing here touches."""
    with own_ray(num_cpus=2, num_gpus=2, log_to_driver=False):
        config = small_config(llama_folder, engine="vllm", tensor_parallel_size=2, **ENGINE_KWARGS)
        config.language_model(engine_num_threads=1)
        config.env_runners(num_env_runners=1, num_gpus_per_env_runner=2, env_runner_cls=EnvRunnerWithoutCuda)
        config.evaluation(evaluation_interval=1)
        algorithm = config.build_algo()
        yield algorithm
        algorithm.stop()


@pytest.fixture(scope="module")
def parallel(algorithm) -> Callable[..., Any]:
    """Calls a function with the engine, in the thread that owns it."""

    def call(function, *args):
        (result,) = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: runner._engine_thread.call(function, runner.engine, *args), local_env_runner=False
        )
        return result

    return call


def test_an_env_runner_gets_its_gpus_and_its_engine_both_workers(algorithm):
    assert ray.available_resources().get("GPU", 0) == 0
    (seen,) = algorithm.env_runner_group.foreach_env_runner(
        lambda runner: (
            sorted(map(int, ray.get_gpu_ids())),
            os.environ["CUDA_VISIBLE_DEVICES"],
            [worker.proc.is_alive() for worker in runner.engine._llm.model_executor.workers],
        ),
        local_env_runner=False,
    )
    assert seen == ([0, 1], "0,1", [True, True])


def test_trees_their_log_probs_and_the_evaluation_of_two_iterations(algorithm):
    batches = record_batches(algorithm)
    for _ in range(2):
        result = algorithm.train()
        # fp32 on both sides: the mean gap between engine and learner is rounding.
        assert result["learners"]["default_policy"]["engine_logprob_gap"] < 1e-4
    assert [[sampled.number for sampled in batch] for batch in batches] == [[0, 1], [2, 3]]
    for sampled in [sampled for batch in batches for sampled in batch]:
        assert (len(sampled.episode.agent_episodes), len(sampled.tree.trajectories)) == (4, 4)
    # It runs on the engines of training.
    assert algorithm.eval_env_runner_group is None
    assert result["evaluation"]["env_runners"]["num_episodes"] == 3
    assert [sampled.number for sampled in algorithm.last_evaluation] == [0, 1, 2]
    assert all(len(sampled.episode.agent_episodes) == 1 for sampled in algorithm.last_evaluation)


def kill_a_worker(engine) -> tuple[bool, float, list[bool], list[bool]]:
    """Returns whether the engine raised, the seconds until it did, which workers live after `close`, and whether their
    shared memory was there before and after it."""
    segments = engine._shared_memory
    there = [all(segment.exists() for segment in segments) and len(segments) >= 2]
    workers = [worker.proc for worker in engine._llm.model_executor.workers]
    engine.submit(GenerationRequest("a", PROMPT, max_tokens=400, seed=1, entropy_window=5))
    engine.step()
    os.kill(workers[1].pid, signal.SIGKILL)
    start, error = time.monotonic(), None
    try:
        while engine.has_unfinished():
            engine.step()
    except RuntimeError as caught:
        error = caught
    seconds = time.monotonic() - start
    engine.close()
    engine.close()
    for worker in workers:
        worker.join(30)
    there.append(any(segment.exists() for segment in segments))
    return error is not None, seconds, [worker.is_alive() for worker in workers], there


def test_a_dead_worker_is_an_error_and_the_others_end_with_the_engine(parallel):
    """The last test of this engine."""
    raised, seconds, alive, segments_there = parallel(kill_a_worker)
    assert (raised, alive, segments_there) == (True, [False, False], [True, False])
    assert seconds < 30
