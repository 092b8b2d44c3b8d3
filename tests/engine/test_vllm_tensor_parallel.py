"""An engine whose model lies in two worker processes: the same numbers as in one process."""

import os
import signal
import time

import numpy as np
import pytest

from rllib_arpo.engine.engine import GenerationRequest
from tests.engine.conftest import reference, run, run_one, start_engine
from tests.helpers.models import tiny_model
from tests.helpers.weights import weights_of

PROMPT = [10 + i % 40 for i in range(70)]


@pytest.fixture(scope="module")
def parallel(llama_folder):
    engine = start_engine(llama_folder, tensor_parallel_size=2)
    yield engine
    engine.close()


def test_generation_is_the_single_process_engines(parallel, engine):
    """Six requests of one prompt and six of others, in two waves, with windows that are shorter and longer."""
    requests = [
        GenerationRequest(str(i), [*PROMPT[: 70 - 5 * (i % 6)], i], 4 + i, (1.0, 0.7, 0.0)[i % 3], (), i % 7, seed=i)
        for i in range(12)
    ]
    waves = [{**run(e, *requests[:6]), **run(e, *requests[6:])} for e in (parallel, engine)]
    for name, single in waves[1].items():
        double = waves[0][name]
        assert double.token_ids.tolist() == single.token_ids.tolist()
        np.testing.assert_allclose(double.log_probs, single.log_probs, atol=1e-4)
        np.testing.assert_allclose(double.entropies, single.entropies, atol=1e-4)
        assert len(double.entropies) == min(int(name) % 7, len(double.token_ids))
        assert (double.finish_reason, double.num_cached_tokens) == (single.finish_reason, single.num_cached_tokens)


def test_a_fork_of_a_running_request_reuses_its_blocks(parallel):
    prompt = [50 + i % 90 for i in range(70)]
    parallel.submit(GenerationRequest("parent", prompt, max_tokens=20, seed=1, entropy_window=2))
    steps = [parallel.step() for _ in range(2)]
    assert [[type(event).__name__ for event in events] for events in steps] == [[], ["EntropyReady"]]
    parallel.submit(GenerationRequest("fork", [*prompt, 1, 2, 3], max_tokens=2, seed=2))
    parallel.submit(GenerationRequest("dropped", prompt, max_tokens=20, seed=2, entropy_window=5))
    parallel.step()
    parallel.cancel("dropped")
    finished = run(parallel)
    assert finished.keys() == {"parent", "fork"}
    assert finished["fork"].num_cached_tokens == 64


def test_score_and_its_temperature(parallel, llama_folder):
    expected = reference(llama_folder, PROMPT[:1], PROMPT[1:], 0.7)[0]
    np.testing.assert_allclose(parallel.score(PROMPT, 0.7), expected, atol=1e-4)
    expected = reference(llama_folder, PROMPT[:1], PROMPT[1:], 1.0)[0]
    np.testing.assert_allclose(parallel.score(PROMPT), expected, atol=1e-4)


def test_new_weights_reach_every_worker(parallel, llama_folder, tmp_path):
    other = tiny_model(tmp_path, vocab_size=300, seed=9)
    for version, folder in ((1, other), (2, llama_folder)):
        parallel.update_weights(weights_of(folder).items(), version)
        finished = run_one(parallel, PROMPT, max_tokens=6, seed=3, entropy_window=6)
        log_probs, entropies = reference(folder, PROMPT, finished.token_ids, 1.0)
        np.testing.assert_allclose(finished.log_probs, log_probs, atol=1e-4)
        np.testing.assert_allclose(finished.entropies, entropies, atol=1e-4)
        assert (finished.weight_versions.tolist(), finished.num_cached_tokens) == ([version] * 6, 0)


def test_a_dead_worker_is_an_error_and_the_others_end_with_the_engine(parallel, engine):
    """The last test of this engine."""
    workers = [worker.proc for worker in parallel._llm.model_executor.workers]
    parallel.submit(GenerationRequest("a", PROMPT, max_tokens=400, seed=1, entropy_window=5))
    parallel.step()
    os.kill(workers[1].pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RuntimeError):
        while parallel.has_unfinished():
            parallel.step()
    assert time.monotonic() - start < 30
    parallel.close()
    parallel.close()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()
    # An engine in this process goes on.
    assert len(run_one(engine, PROMPT, max_tokens=3, seed=1).token_ids) == 3
