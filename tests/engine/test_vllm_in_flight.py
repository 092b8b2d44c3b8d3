"""New weights for running requests: old tokens stay, new tokens are the new weights' given the whole prefix."""

import numpy as np
import pytest

from rllib_arpo.engine.engine import EntropyReady, Finished, GenerationRequest
from tests.engine.conftest import reference, run, run_one, start_engine
from tests.helpers.weights import weights_of

pytestmark = pytest.mark.slow

PROMPT = [10 + i % 40 for i in range(70)]


@pytest.fixture(scope="module")
def shared_engine(folders):
    engine = start_engine(folders[0])
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine, folders):
    """The engine as it was made: with the old weights, their version, an empty cache and no requests."""
    assert not shared_engine.has_unfinished()
    shared_engine.update_weights(weights_of(folders[0]).items(), version=-1)
    return shared_engine


def steps(engine, num_steps: int) -> list:
    return [event for _ in range(num_steps) for event in engine.step()]


def log_probs_by_version(folders, prompt: list[int], finished: Finished, temperature: float = 1.0) -> np.ndarray:
    """[n]: each token's log-prob under the weights whose version it bears (-1: old, 5: new), by Hugging Face."""
    old, new = (reference(folder, prompt, finished.token_ids, temperature)[0] for folder in folders)
    return np.where(finished.weight_versions == 5, new, old)


def test_sampled_requests_keep_tokens_windows_and_log_probs(engine, folders):
    """Four requests that are shared, alone, not yet started, and at another temperature, through one update."""
    prompts = {"a": PROMPT, "b": PROMPT, "c": [7] * 40, "d": [9] * 33}
    settings = {"a": {"seed": 5}, "b": {"seed": 2}, "c": {"seed": 3, "temperature": 0.7}, "d": {"seed": 4}}
    requests = {n: GenerationRequest(n, p, 20, entropy_window=10, **settings[n]) for n, p in prompts.items()}
    for name in "abc":
        engine.submit(requests[name])
    events = steps(engine, 6)
    engine.submit(requests["d"])
    engine.update_weights(weights_of(folders[1]).items(), version=5)
    while engine.has_unfinished():
        events += engine.step()
    ready = {event.request_id: event.entropies for event in events if isinstance(event, EntropyReady)}
    finished = {event.request_id: event for event in events if isinstance(event, Finished)}
    assert {name: f.weight_versions.tolist() for name, f in finished.items()} == {
        "a": [-1] * 6 + [5] * 14,
        "b": [-1] * 6 + [5] * 14,
        "c": [-1] * 6 + [5] * 14,
        "d": [5] * 20,
    }
    for name, f in finished.items():
        temperature = settings[name].get("temperature", 1.0)
        expected = log_probs_by_version(folders, prompts[name], f, temperature)
        np.testing.assert_allclose(f.log_probs, expected, atol=1e-4)
        old, new = (reference(folder, prompts[name], f.token_ids, temperature) for folder in folders)
        assert np.abs(new[0] - old[0]).max() > 0.1
        entropies = np.where(f.weight_versions == 5, new[1], old[1])[:10]
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
    assert run_one_beside(engine, "b").num_cached_tokens == 64
    engine.update_weights(weights_of(folders[1]).items(), version=5)
    other = GenerationRequest("c", [*PROMPT[:64], 3, 4], max_tokens=3, seed=3)
    engine.cancel("a")
    fresh = run(engine, other)["c"]
    assert fresh.num_cached_tokens == 0
    again = run_one(engine, other.prompt_token_ids, max_tokens=3, seed=3)
    assert again.num_cached_tokens == 64
    for finished in (fresh, again):
        expected = reference(folders[1], other.prompt_token_ids, finished.token_ids, 1.0)[0]
        np.testing.assert_allclose(finished.log_probs, expected, atol=1e-4)


def run_one_beside(engine, name: str) -> Finished:
    """Runs a request with `PROMPT` while others run on."""
    engine.step()
    engine.submit(GenerationRequest(name, PROMPT, max_tokens=2, seed=2))
    while True:
        for event in engine.step():
            if event.request_id == name:
                return event


def test_a_score_beside_running_requests_loses_nothing(engine, folders):
    requests = [GenerationRequest(str(i), [i] * 40, 3 + i, entropy_window=2, seed=i) for i in range(3)]
    alone = run(engine, *requests)
    for request in requests:
        engine.submit(request)
    engine.step()
    engine.update_weights(weights_of(folders[0]).items(), version=1)
    for _ in range(3):
        np.testing.assert_allclose(
            engine.score(PROMPT), reference(folders[0], PROMPT[:1], PROMPT[1:], 1.0)[0], atol=1e-4
        )
    assert engine.has_unfinished()
    engine.cancel("1")
    events = engine.step()
    summary = [(event.request_id, type(event).__name__) for event in events]
    assert summary == [("0", "EntropyReady"), ("2", "EntropyReady"), ("0", "Finished"), ("2", "Finished")]
    for event in events[2:]:
        assert event.token_ids.tolist() == alone[event.request_id].token_ids.tolist()
    assert not engine.has_unfinished()


def test_a_score_passes_the_queue(folders):
    """One request runs, one waits for its place: the score does not wait for the second."""
    engine = start_engine(folders[0], max_num_seqs=1)
    for name in ("a", "b"):
        engine.submit(GenerationRequest(name, PROMPT, max_tokens=3, seed=1))
    engine.step()
    engine.update_weights(weights_of(folders[0]).items(), version=1)
    engine.score(PROMPT)
    finished = run(engine)
    assert {name: f.weight_versions.tolist() for name, f in finished.items()} == {"a": [-1, 1, 1], "b": [1, 1, 1]}
    engine.close()
