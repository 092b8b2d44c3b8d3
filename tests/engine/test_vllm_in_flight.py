"""New weights, scores and cancellations while requests run, on engines that wait for each step and that do not.

The latter start a step before they look at the last one's output. On a CPU vLLM turns that off; here it has the
schedule of a GPU, without its streams, and its older model runner, since the newer one needs Triton.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from rllib_arpo.engine.engine import NO_WEIGHTS, EntropyReady, Finished, GenerationRequest
from tests.engine.conftest import reference, run, run_one, start_engine
from tests.helpers.models import byte_tokenizer, tiny_model
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


@pytest.fixture(params=[0, 1], ids=["waits", "runs ahead"])
def engine(request, engines, folders):
    """Each of them as it was made: with the old weights, their version, an empty cache and no requests."""
    engine = engines[request.param]
    assert not engine.has_unfinished()
    engine.update_weights(weights_of(folders[0]).items(), version=-1)
    return engine


def steps(engine, num_steps: int) -> list:
    return [event for _ in range(num_steps) for event in engine.step()]


def to_the_end(engine) -> list:
    events = []
    while engine.has_unfinished():
        events += engine.step()
    return events


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


def test_both_sample_the_same(engines):
    def in_two_waves(engine) -> dict[str, Finished]:
        requests = requests_of_all_kinds()
        engine._llm.reset_prefix_cache()
        return run(engine, *requests[:9]) | run(engine, *requests[9:])

    waiting, ahead = map(in_two_waves, engines)
    assert waiting.keys() == ahead.keys()
    for name, one in waiting.items():
        other = ahead[name]
        assert (one.finish_reason, one.num_cached_tokens) == (other.finish_reason, other.num_cached_tokens)
        for array in ("token_ids", "log_probs", "entropies", "weight_versions"):
            np.testing.assert_array_equal(getattr(one, array), getattr(other, array))
    assert {f.finish_reason for f in waiting.values()} == {"stop", "length"}
    assert not any(np.isnan(f.entropies).any() for f in ahead.values())


def test_events_come_a_step_later(engines):
    for engine in engines:
        engine.submit(GenerationRequest("a", PROMPT, 3, entropy_window=2, seed=1))
    steps = [[[type(event).__name__ for event in engine.step()] for _ in range(4)] for engine in engines]
    assert steps == [[[], ["EntropyReady"], ["Finished"], []], [[], [], ["EntropyReady"], ["Finished"]]]


def test_sampled_requests_keep_tokens_windows_and_log_probs(engine, folders):
    """Four requests that are shared, alone, not yet started, and at another temperature, through one update.

    Each token has the log-prob of the weights whose version it bears (-1: old, 5: new). A step that was started ahead
    keeps its token and its version.
    """
    prompts = {"a": PROMPT, "b": PROMPT, "c": [7] * 40, "d": [9] * 33}
    settings = {"a": {"seed": 5}, "b": {"seed": 2}, "c": {"seed": 3, "temperature": 0.7}, "d": {"seed": 4}}
    requests = {n: GenerationRequest(n, p, 20, entropy_window=10, **settings[n]) for n, p in prompts.items()}
    for name in "abc":
        engine.submit(requests[name])
    events = steps(engine, 6)
    engine.submit(requests["d"])
    engine.update_weights(weights_of(folders[1]).items(), version=5)
    events += to_the_end(engine)
    ready = {event.request_id: event.entropies for event in events if isinstance(event, EntropyReady)}
    finished = {event.request_id: event for event in events if isinstance(event, Finished)}
    old_tokens = {name: f.weight_versions.tolist().count(-1) for name, f in finished.items()}
    assert old_tokens == {"a": 6, "b": 6, "c": 6, "d": 0}
    for name, f in finished.items():
        is_new = np.arange(20) >= old_tokens[name]
        assert f.weight_versions.tolist() == np.where(is_new, 5, -1).tolist()
        temperature = settings[name].get("temperature", 1.0)
        old, new = (reference(folder, prompts[name], f.token_ids, temperature) for folder in folders)
        assert np.abs(new[0] - old[0]).max() > 0.1
        np.testing.assert_allclose(f.log_probs, np.where(is_new, new[0], old[0]), atol=1e-4)
        entropies = np.where(is_new, new[1], old[1])[:10]
        np.testing.assert_allclose(f.entropies, entropies, atol=1e-4)
        np.testing.assert_allclose(ready[name], entropies, atol=1e-4)


def test_a_seeded_sampler_goes_on_where_it_was(engine, folders):
    """With the same weights loaded again in mid-request nothing changes, whatever the sampler's seed."""
    request = GenerationRequest("a", PROMPT, 20, seed=7)
    undisturbed = run(engine, request)["a"]
    engine.submit(request)
    for version in (1, 2):
        steps(engine, 4)
        engine.update_weights(weights_of(folders[0]).items(), version)
    disturbed = run(engine)["a"]
    assert disturbed.token_ids.tolist() == undisturbed.token_ids.tolist()
    assert disturbed.weight_versions.tolist() == [-1] * 4 + [1] * 4 + [2] * 12
    np.testing.assert_allclose(disturbed.log_probs, undisturbed.log_probs, atol=1e-5)


def test_nothing_stale_is_reused(engine, folders):
    """A request that comes with the update finds no prefix; one that comes later finds what was computed anew."""
    engine.submit(GenerationRequest("a", PROMPT, max_tokens=30, seed=1))
    engine.step()
    engine.submit(GenerationRequest("b", PROMPT, max_tokens=2, seed=2))
    (beside,) = (event for event in steps(engine, 4) if event.request_id == "b")
    assert beside.num_cached_tokens == 64
    engine.update_weights(weights_of(folders[1]).items(), version=5)
    other = GenerationRequest("c", [*PROMPT[:64], 3, 4], max_tokens=3, seed=3)
    engine.cancel("a")
    fresh = run(engine, other)["c"]
    again = run_one(engine, other.prompt_token_ids, max_tokens=3, seed=3)
    assert (fresh.num_cached_tokens, again.num_cached_tokens) == (0, 64)
    for finished in (fresh, again):
        expected = reference(folders[1], other.prompt_token_ids, finished.token_ids, 1.0)[0]
        np.testing.assert_allclose(finished.log_probs, expected, atol=1e-4)


def test_a_score_beside_running_requests_loses_nothing(engine, folders):
    requests = [GenerationRequest(str(i), [i] * 40, 3 + i, entropy_window=2, seed=i) for i in range(3)]
    alone = run(engine, *requests)
    for request in requests:
        engine.submit(request)
    events = engine.step()
    engine.update_weights(weights_of(folders[0]).items(), version=1)
    expected = reference(folders[0], PROMPT[:1], PROMPT[1:], 1.0)[0]
    for _ in range(3):
        np.testing.assert_allclose(engine.score(PROMPT), expected, atol=1e-4)
    assert engine.has_unfinished()
    engine.cancel("1")
    events += to_the_end(engine)
    assert sorted(event.request_id for event in events if isinstance(event, EntropyReady)) == ["0", "2"]
    finished = {event.request_id: event.token_ids.tolist() for event in events if isinstance(event, Finished)}
    assert finished == {name: alone[name].token_ids.tolist() for name in ("0", "2")}


def test_a_request_that_is_cancelled_is_never_heard_of_again(engine):
    """At once, in its window or behind it; its id may be used again, and only then."""
    request = GenerationRequest("a", PROMPT, 10, seed=5, entropy_window=4)
    run(engine, request)
    alone = run(engine, request)
    for num_steps in range(4):
        engine.submit(GenerationRequest("a", PROMPT, 10, seed=6, entropy_window=2, record_entropies="all"))
        with pytest.raises(RuntimeError, match="'a' is in use"):
            engine.submit(request)
        steps(engine, num_steps)
        engine.cancel("a")
        engine.cancel("a")
    engine.submit(request)
    events = to_the_end(engine)
    assert [type(event) for event in events] == [EntropyReady, Finished]
    assert events[1].token_ids.tolist() == alone["a"].token_ids.tolist()


def test_no_step_runs_while_weights_arrive(engines, folders, monkeypatch):
    """Also none that was started ahead. An engine that fails meanwhile has no version."""
    ahead = engines[1]
    ahead.update_weights(weights_of(folders[0]).items(), version=3)
    queue, seen = ahead._llm.engine_core.engine_core.batch_queue, []

    def rpc(method, kwargs):
        seen.append((method, kwargs, len(queue), ahead.weight_version))
        if kwargs == {"update_info": {"fails": True}}:
            raise ZeroDivisionError

    monkeypatch.setattr(ahead._llm, "collective_rpc", rpc)
    ahead.submit(GenerationRequest("a", PROMPT, 10, seed=1))
    ahead.step()
    assert len(queue) == 1
    ahead.receive_weights({"names": []}, 4)
    assert seen == [
        ("start_weight_update", {}, 0, NO_WEIGHTS),
        ("update_weights", {"update_info": {"names": []}}, 0, NO_WEIGHTS),
        ("finish_weight_update", {}, 0, NO_WEIGHTS),
    ]
    ahead.step()
    with pytest.raises(ZeroDivisionError):
        ahead.receive_weights({"fails": True}, 5)
    assert ahead.weight_version == NO_WEIGHTS
    ahead.receive_weights({}, 6)
    (finished,) = to_the_end(ahead)
    assert finished.weight_versions.tolist() == [3, 4] + [6] * 8


def test_a_batch_that_is_preempted_keeps_its_tokens(engines, tmp_path):
    """More requests than the cache of an engine that runs ahead can hold: 640 tokens of 512 bytes.

    It lives in a worker thread, and has experts, beside dense models, for which vLLM made no groups of experts.
    """
    folder, before = tiny_model(tmp_path, "qwen3_moe", seed=4), engines[0].score(PROMPT)
    requests = [
        GenerationRequest(str(i), [i] * 40, 120, entropy_window=30, seed=i, record_entropies=("windows", "all")[i % 2])
        for i in range(6)
    ]
    with ThreadPoolExecutor(1) as thread:
        small = thread.submit(start_engine_that_runs_ahead, folder, kv_cache_memory_bytes=20 * 32 * 512).result()
        finished = thread.submit(run, small, *requests).result()
        for _ in range(2):
            thread.submit(small.close).result()
    for request in requests:
        result = finished[request.request_id]
        log_probs, entropies = reference(folder, request.prompt_token_ids, result.token_ids, 1.0)
        np.testing.assert_allclose(result.log_probs, log_probs, atol=1e-4)
        np.testing.assert_allclose(result.entropies, entropies[: request.max_entropies], atol=1e-4)
    np.testing.assert_array_equal(engines[0].score(PROMPT), before)


def test_a_score_passes_the_queue(engines, folders):
    """Some requests run, one waits for its place: the score does not wait for it."""
    engine = engines[0]
    engine.update_weights(weights_of(folders[0]).items(), version=0)
    places = engine._llm.vllm_config.scheduler_config.max_num_seqs
    for number in range(places + 1):
        engine.submit(GenerationRequest(str(number), PROMPT, max_tokens=3, seed=1))
    engine.step()
    engine.update_weights(weights_of(folders[0]).items(), version=1)
    engine.score(PROMPT)
    last = str(places)
    assert not engine._running[last].token_ids
    finished = run(engine)
    assert [finished[name].weight_versions.tolist() for name in ("0", last)] == [[0, 1, 1], [1, 1, 1]]
