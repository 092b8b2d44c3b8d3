"""`record_entropies="all"`: the entropies of all generated tokens, by a plain Hugging Face forward pass."""

import numpy as np
import pytest

from rllib_arpo.engine import entropy_windows
from rllib_arpo.engine.engine import GenerationRequest
from tests.engine.conftest import reference, reference_top_k_entropies, run

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def everything(name: str, prompt: list[int], max_tokens: int, **settings) -> GenerationRequest:
    return GenerationRequest(name, prompt, max_tokens, record_entropies="all", **settings)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_every_token_has_its_entropy(engine, llama_folder, temperature):
    """130 tokens: the store of the entropies grows several times."""
    finished = run(engine, everything("a", PROMPT, 130, temperature=temperature, seed=1))["a"]
    expected = reference(llama_folder, PROMPT, finished.token_ids, temperature or 1.0)[1]
    assert len(finished.entropies) == len(finished.token_ids)
    np.testing.assert_allclose(finished.entropies, expected, atol=1e-4)
    assert entropy_windows._WINDOWS == {}


def test_the_window_still_comes_in_the_step_of_its_last_token(engine, llama_folder):
    engine.submit(everything("a", PROMPT, 7, entropy_window=4, seed=1))
    steps = [engine.step() for _ in range(7)]
    assert [[type(event).__name__ for event in events] for events in steps] == [
        [], [], [], ["EntropyReady"], [], [], ["Finished"],
    ]  # fmt: skip
    ready, finished = steps[3][0], steps[6][0]
    assert (ready.entropies.shape, finished.entropies.shape) == ((4,), (7,))
    assert ready.entropies.tolist() == finished.entropies[:4].tolist()
    expected = reference(llama_folder, PROMPT, finished.token_ids, 1.0)[1]
    np.testing.assert_allclose(finished.entropies, expected, atol=1e-4)


def test_ends_with_and_before_the_window(engine):
    engine.submit(everything("exactly", PROMPT, 3, entropy_window=3, seed=1))
    engine.submit(everything("earlier", PROMPT, 3, entropy_window=4, seed=1))
    engine.submit(everything("no window", PROMPT, 3, seed=1))
    events = [event for _ in range(3) for event in engine.step()]
    assert [(type(event).__name__, event.request_id, len(event.entropies)) for event in events] == [
        ("EntropyReady", "exactly", 3),
        ("Finished", "exactly", 3),
        ("Finished", "earlier", 3),
        ("Finished", "no window", 3),
    ]


def test_all_beside_windows_beside_none(engine, llama_folder):
    """Of the same seeds: the tokens do not depend on what is recorded."""
    kinds = {"all": ("all", 5), "window": ("windows", 5), "none": ("windows", 0)}
    requests = {
        f"{name} {i}": GenerationRequest(
            f"{name} {i}",
            [*PROMPT, i],
            10 + 15 * i,
            (1.0, 0.7)[i % 2],
            (),
            window,
            i,
            ("exact", "top_k")[i % 2],
            kind,
        )
        for i in range(4)
        for name, (kind, window) in kinds.items()
    }
    finished = run(engine, *requests.values())
    for i in range(4):
        tokens = finished[f"all {i}"].token_ids
        prompt, temperature = [*PROMPT, i], (1.0, 0.7)[i % 2]
        if i % 2:
            expected = reference_top_k_entropies(llama_folder, prompt, tokens, temperature)
        else:
            expected = reference(llama_folder, prompt, tokens, temperature)[1]
        for name, n in (("all", len(tokens)), ("window", 5), ("none", 0)):
            assert finished[f"{name} {i}"].token_ids.tolist() == tokens.tolist()
            np.testing.assert_allclose(finished[f"{name} {i}"].entropies, expected[:n], atol=1e-4)


def test_a_cancelled_request_leaves_no_window(engine):
    engine.submit(everything("before the window is full", PROMPT, 50, entropy_window=8, seed=5))
    engine.submit(everything("after it", PROMPT, 50, entropy_window=1, seed=5))
    engine.step()
    engine.step()
    engine.cancel("before the window is full")
    engine.cancel("after it")
    assert (engine.has_unfinished(), entropy_windows._WINDOWS) == (False, {})


def test_an_unknown_kind_is_refused(engine):
    message = r"^Request 'a' has the unknown record_entropies 'some': choose one of 'windows', 'all'\.$"
    with pytest.raises(ValueError, match=message):
        engine.submit(GenerationRequest("a", PROMPT, 3, record_entropies="some"))
