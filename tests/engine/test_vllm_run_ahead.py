"""Engines that start a step before they look at the last one's output, against engines that do not.

vLLM's older model runner: the newer one needs Triton. On a CPU vLLM turns its asynchronous scheduling off; here it has
the schedule of a GPU, without its streams.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rllib_arpo.engine.engine import EntropyReady, Finished, GenerationRequest
from tests.engine.conftest import run, start_engine
from tests.helpers.models import byte_tokenizer
from tests.helpers.weights import weights_of

pytestmark = pytest.mark.slow

PROMPT = [10 + i % 40 for i in range(70)]


class _OnACPU:
    """A stream or an event of CUDA on a CPU, where all has happened when a call returns."""

    def __init__(self, *_args, **_settings):
        pass

    def __getattr__(self, _method):
        return lambda *_args: None


@pytest.fixture(scope="module", autouse=True)
def streams_of_a_gpu() -> Iterator[None]:
    """torch.cuda has streams and events, as far as vLLM's `AsyncGPUModelRunnerOutput` uses them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("Event", "Stream", "current_stream"):
            patch.setattr(torch.cuda, name, _OnACPU)
        patch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
        yield


def start_engine_that_runs_ahead(folder: str, **engine_kwargs):
    from rllib_arpo.engine.vllm import engine as engine_module

    choose = engine_module.choose_entropy_processor

    def choose_and_run_ahead(config):
        config.scheduler_config.async_scheduling = True
        choose(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "choose_entropy_processor", choose_and_run_ahead)
        engine = start_engine(folder, **engine_kwargs)
    assert engine._llm.engine_core.engine_core.batch_queue is not None
    return engine


@pytest.fixture(scope="module")
def engines(folders):
    """One that waits for every step, one that runs ahead."""
    both = start_engine(folders[0]), start_engine_that_runs_ahead(folders[0])
    yield both
    for engine in both:
        engine.close()


def tokens_of(finished: dict[str, Finished]) -> dict[str, list]:
    return {name: [f.finish_reason, f.num_cached_tokens, f.token_ids.tolist()] for name, f in finished.items()}


def assert_equal(ahead: dict[str, Finished], waiting: dict[str, Finished]) -> None:
    assert tokens_of(ahead) == tokens_of(waiting)
    for name, one in waiting.items():
        for array in ("log_probs", "entropies", "weight_versions"):
            np.testing.assert_array_equal(getattr(ahead[name], array), getattr(one, array))


def requests_of_all_kinds() -> list[GenerationRequest]:
    """Windows that end before, with and after their requests; all entropies; none; greedy; stop strings."""
    stop = tuple(byte_tokenizer().decode([token]) for token in range(40, 90))
    return [
        GenerationRequest(
            str(i),
            [i, *PROMPT[: 3 + 9 * (i % 7)]],
            20 + i,
            (1.0, 0.7, 0.0)[i % 3],
            stop if i % 4 == 3 else (),
            6 * (i % 5),
            seed=i,
            record_entropies=("windows", "all")[i % 2],
            entropy_estimator=("exact", "top_k")[i % 5 == 1],
        )
        for i in range(14)
    ]


def test_tokens_log_probs_and_entropies_are_the_same(engines):
    def in_two_waves(engine) -> dict[str, Finished]:
        requests = requests_of_all_kinds()
        engine._llm.reset_prefix_cache()
        return run(engine, *requests[:9]) | run(engine, *requests[9:])

    waiting, ahead = map(in_two_waves, engines)
    assert_equal(ahead, waiting)
    assert {f.finish_reason for f in waiting.values()} == {"stop", "length"}
    assert not any(np.isnan(f.entropies).any() for f in ahead.values())


def test_events_come_a_step_later(engines):
    for engine in engines:
        engine.submit(GenerationRequest("a", PROMPT, 3, entropy_window=2, seed=1))
    steps = [[[type(event).__name__ for event in engine.step()] for _ in range(4)] for engine in engines]
    assert steps == [[[], ["EntropyReady"], ["Finished"], []], [[], [], ["EntropyReady"], ["Finished"]]]


def test_weights_that_come_while_a_step_runs_sample_the_next_token(engines, folders):
    """The step that was started ahead keeps its token and its version; seeded samplers lose no draw."""
    requests = [GenerationRequest(str(i), [i, *PROMPT], 20, entropy_window=30, seed=i) for i in range(6)]

    def with_two_updates(engine) -> dict[str, Finished]:
        finished: dict[str, Finished] = {}
        engine._llm.reset_prefix_cache()
        for request in requests:
            engine.submit(request)
        for version, folder in ((5, folders[1]), (6, folders[0])):
            events = [event for _ in range(5) for event in engine.step()]
            finished |= {event.request_id: event for event in events if isinstance(event, Finished)}
            engine.update_weights(weights_of(folder).items(), version)
        finished |= run(engine)
        engine.update_weights(weights_of(folders[0]).items(), version=-1)
        return finished

    # In five steps the engine that runs ahead tells four tokens, and finishes the fifth before the update.
    waiting, ahead = map(with_two_updates, engines)
    longest = max(waiting.values(), key=lambda one: len(one.token_ids))
    assert longest.weight_versions.tolist() == [-1] * 5 + [5] * 5 + [6] * 10
    assert_equal(ahead, waiting)


def test_a_batch_that_is_preempted_keeps_its_tokens(folders):
    """More requests than the cache can hold: 640 tokens of 512 bytes."""
    requests = [GenerationRequest(str(i), [i] * 40, 120, entropy_window=150, seed=i) for i in range(6)]
    finished = []
    for start in (start_engine, start_engine_that_runs_ahead):
        engine = start(folders[0], kv_cache_memory_bytes=20 * 32 * 512)
        finished.append(run(engine, *requests))
        engine.close()
    waiting, ahead = finished
    for name, one in waiting.items():
        assert ahead[name].token_ids.tolist() == one.token_ids.tolist()
        np.testing.assert_allclose(ahead[name].log_probs, one.log_probs, atol=1e-4)
        np.testing.assert_allclose(ahead[name].entropies, one.entropies, atol=1e-4)


def test_a_request_that_is_cancelled_while_a_step_runs_is_never_heard_of_again(engines):
    waiting, ahead = engines
    request = GenerationRequest("a", PROMPT, 10, seed=5, entropy_window=4)
    run(ahead, request)
    alone = run(waiting, request)
    for _ in range(3):
        ahead.submit(GenerationRequest("a", PROMPT, 10, seed=6, entropy_window=2))
        ahead.step()
        ahead.cancel("a")
    ahead.submit(request)
    events = []
    while ahead.has_unfinished():
        events += ahead.step()
    assert [type(event) for event in events] == [EntropyReady, Finished]
    assert events[1].token_ids.tolist() == alone["a"].token_ids.tolist()


def test_a_score_beside_running_requests_loses_nothing(engines):
    requests = [GenerationRequest(str(i), [i] * 40, 3 + i, entropy_window=2, seed=i) for i in range(3)]
    waiting, ahead = engines
    expected, score = run(waiting, *requests), waiting.score(PROMPT)
    for request in requests:
        ahead.submit(request)
    events = ahead.step() + ahead.step()
    np.testing.assert_allclose(ahead.score(PROMPT), score, atol=1e-5)
    while ahead.has_unfinished():
        events += ahead.step()
    finished = {event.request_id: event.token_ids.tolist() for event in events if isinstance(event, Finished)}
    assert finished == {name: one.token_ids.tolist() for name, one in expected.items()}
    assert sum(isinstance(event, EntropyReady) for event in events) == 3


def test_a_transfer_begins_when_no_step_runs(engines, folders):
    """Also none that was started for a request that has ended."""
    ahead = engines[1]
    shapes = {name: array.shape for name, array in weights_of(folders[0]).items()}
    core = ahead._llm.engine_core.engine_core
    ahead.submit(GenerationRequest("a", PROMPT, 10, seed=1))
    ahead.step()
    with pytest.raises(RuntimeError, match=r"^Weights cannot be transferred while 1 requests are running\.$"):
        ahead.begin_transfer(shapes)
    ahead.step()
    ahead.cancel("a")
    assert len(core.batch_queue) == 1
    ahead.begin_transfer(shapes)
    assert len(core.batch_queue) == 0
    ahead.end_transfer(-1)
    assert len(run(ahead, GenerationRequest("b", PROMPT, 3, seed=1))["b"].token_ids) == 3
