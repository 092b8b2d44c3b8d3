"""The vLLM engine on a tiny random model, against Hugging Face's forward pass."""

import numpy as np
import pytest

from rllib_arpo.core.reshaping import Reshaping, reshaped_log_probs
from rllib_arpo.engine import EngineConfig, make_engine
from rllib_arpo.engine.engine import Finished, GenerationRequest
from tests.engine.conftest import reference, reference_logits, reference_top_k_entropies, run, run_one
from tests.helpers.models import byte_tokenizer

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize(("kind", "num_tokens", "num_entropies"), [("windows", 12, 5), ("all", 130, 130)])
def test_entropies_and_log_probs_are_those_of_the_sampling_distribution(
    engine, llama_folder, temperature, kind, num_tokens, num_entropies
):
    """Of greedy requests at temperature 1. With 130 tokens the store of the entropies grows several times."""
    settings = {"entropy_window": 5, "seed": 1, "record_entropies": kind}
    finished = run_one(engine, PROMPT, num_tokens, temperature=temperature, **settings)
    log_probs, entropies = reference(llama_folder, PROMPT, finished.token_ids, temperature or 1.0)
    np.testing.assert_allclose(finished.log_probs, log_probs, atol=1e-4)
    np.testing.assert_allclose(finished.entropies, entropies[:num_entropies], atol=1e-4)
    assert len(finished.entropies) == min(num_entropies, len(finished.token_ids))
    assert (finished.token_ids.dtype, finished.log_probs.dtype, finished.entropies.dtype) == ("int32", "f4", "f4")
    assert engine.vocab_size == 300


@pytest.mark.parametrize("reshaping", [
    Reshaping(top_p=0.6),
    Reshaping(top_k=5),
    Reshaping(repetition_penalty=1.3),
    Reshaping(top_p=0.95, top_k=20, repetition_penalty=1.1),
])  # fmt: skip
def test_log_probs_are_those_of_the_reshaped_distribution(engine, llama_folder, reshaping):
    finished = run_one(engine, PROMPT, max_tokens=12, temperature=0.6, seed=1, reshaping=reshaping)
    logits = reference_logits(llama_folder, PROMPT, finished.token_ids).numpy()
    tokens = finished.token_ids.tolist()
    prefixes = [np.array([*PROMPT, *tokens[:i]]) for i in range(12)]
    expected = [
        reshaped_log_probs(at_place, prefix, 0.6, reshaping)[token]
        for at_place, prefix, token in zip(logits, prefixes, tokens, strict=True)
    ]
    np.testing.assert_allclose(finished.log_probs, expected, atol=1e-4)


def test_entropies_are_those_of_all_tokens_beside_top_p_and_top_k(engine, llama_folder):
    reshaping = Reshaping(top_p=0.5, top_k=3)
    finished = run_one(engine, PROMPT, max_tokens=6, temperature=0.7, entropy_window=6, seed=1, reshaping=reshaping)
    entropies = reference(llama_folder, PROMPT, finished.token_ids, 0.7)[1]
    np.testing.assert_allclose(finished.entropies, entropies, atol=1e-4)
    with pytest.raises(ValueError, match="has a repetition penalty, with which entropies cannot be measured"):
        run_one(engine, PROMPT, entropy_window=1, reshaping=Reshaping(repetition_penalty=1.1))


def test_all_beside_windows_beside_none(engine, llama_folder):
    """Of the same seeds: the tokens do not depend on what is recorded."""
    kinds = {"all": ("all", 5), "window": ("windows", 5), "none": ("windows", 0)}
    requests = {
        f"{name} {i}": GenerationRequest(
            f"{name} {i}", [*PROMPT, i], 10 + 15 * i, (1.0, 0.7)[i % 2], (), window, i, ("exact", "top_k")[i % 2], kind
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


@pytest.mark.parametrize(("kind", "num_entropies"), [("windows", 4), ("all", 7)])
def test_entropies_come_in_the_step_of_the_last_token_of_the_window(engine, kind, num_entropies):
    """A request that ends with its window sends both events, one that ends earlier only its end."""
    for name, max_tokens, window in (("longer", 7, 4), ("exactly", 3, 3), ("earlier", 3, 4)):
        engine.submit(GenerationRequest(name, PROMPT, max_tokens, 1.0, (), window, seed=1, record_entropies=kind))
    steps = [engine.step() for _ in range(7)]
    assert [[(type(event).__name__, event.request_id, len(event.entropies)) for event in step] for step in steps] == [
        [],
        [],
        [("EntropyReady", "exactly", 3), ("Finished", "exactly", 3), ("Finished", "earlier", 3)],
        [("EntropyReady", "longer", 4)],
        [],
        [],
        [("Finished", "longer", num_entropies)],
    ]
    assert steps[3][0].entropies.tolist() == steps[6][0].entropies[:4].tolist()
    assert {event.finish_reason for step in steps for event in step if isinstance(event, Finished)} == {"length"}
    assert not engine.has_unfinished()


def test_the_end_of_sequence_is_kept(engine):
    eos = byte_tokenizer().eos_token_id
    requests = [GenerationRequest(str(i), [i], max_tokens=150, seed=i) for i in range(16)]
    stopped = [f for f in run(engine, *requests).values() if f.finish_reason == "stop"]
    assert stopped
    for finished in stopped:
        assert finished.token_ids[-1] == eos
        assert eos not in finished.token_ids[:-1]
        assert len(finished.log_probs) == len(finished.token_ids)


def test_a_stop_string_ends_the_turn_and_its_tokens_stay_as_sampled(engine):
    tokenizer = byte_tokenizer()
    whole = run_one(engine, PROMPT, max_tokens=60, seed=3)
    texts = [tokenizer.decode([token]) for token in whole.token_ids]
    start = next(i for i in range(2, 50) if all(text.isascii() and text.isprintable() for text in texts[i : i + 2]))
    stop = texts[start] + texts[start + 1]
    assert stop not in "".join(texts[: start + 1])
    stopped = run_one(engine, PROMPT, max_tokens=60, seed=3, stop=("<never>", stop), entropy_window=1)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == whole.token_ids[: start + 2].tolist()
    np.testing.assert_allclose(stopped.log_probs, whole.log_probs[: start + 2], atol=1e-6)


def test_a_fork_reuses_the_blocks_of_its_prefix(engine):
    prompt = [50 + i % 90 for i in range(70)]
    engine.submit(GenerationRequest("parent", prompt, max_tokens=90, seed=1))
    for _ in range(31):
        events = engine.step()
    assert events == []
    engine.submit(GenerationRequest("fork of a running parent", [*prompt, 1, 2, 3], max_tokens=2, seed=2))
    finished = run(engine)
    assert finished["parent"].num_cached_tokens == 0
    assert finished["fork of a running parent"].num_cached_tokens == 64  # two blocks of 32
    prefix = [*prompt, *finished["parent"].token_ids.tolist()[:40], 1, 2, 3]
    assert run_one(engine, prefix, max_tokens=1).num_cached_tokens == 96


def test_score_agrees_with_the_sampled_log_probs(engine, llama_folder):
    finished = run_one(engine, PROMPT, max_tokens=9, seed=2)
    token_ids = [*PROMPT, *finished.token_ids.tolist()]
    scores = engine.score(token_ids)
    np.testing.assert_allclose(scores[len(PROMPT) - 1 :], finished.log_probs, atol=1e-4)
    np.testing.assert_allclose(scores, reference(llama_folder, PROMPT[:1], token_ids[1:], 1.0)[0], atol=1e-4)
    assert engine.score(PROMPT[:1]).shape == (0,)


def test_a_full_context_ends_by_length(engine):
    finished = run_one(engine, [7] * 508, max_tokens=50, temperature=0.0)
    assert (finished.finish_reason, len(finished.token_ids)) == ("length", 4)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([7] * 512, r"^Request 'bad' has a prompt of 512 tokens: .* fewer than max_context_tokens=512\.$"),
        ([], r"^Request 'bad' has a prompt of 0 tokens: it must have at least one"),
        ([7, 300], r"^Request 'bad' has token ids outside of 0\.\.299\.$"),
    ],
)
def test_bad_requests_are_refused(engine, prompt, message):
    with pytest.raises(ValueError, match=message):
        engine.submit(GenerationRequest("bad", prompt, max_tokens=1))
    assert not engine.has_unfinished()


def test_a_request_that_fails_inside_vllm_ends_as_an_error(engine, monkeypatch):
    """vLLM ends a request as "abort" or "error" when it gives it up."""
    from vllm.v1.engine import FinishReason

    engine.submit(GenerationRequest("a", PROMPT, max_tokens=9, entropy_window=6, seed=1))
    core = engine._llm.engine_core
    get_output = core.get_output
    engine.step()

    def failing_step():
        outputs = get_output()
        (output,) = outputs.outputs
        core.abort_requests([output.request_id])
        output.finish_reason = FinishReason.ERROR
        return outputs

    monkeypatch.setattr(core, "get_output", failing_step)
    (finished,) = engine.step()
    assert (finished.finish_reason, len(finished.token_ids), len(finished.entropies)) == ("error", 2, 2)
    assert not engine.has_unfinished()


def test_what_cannot_sleep_says_so(engine, llama_folder):
    """On a CPU vLLM's own `sleep` frees nothing and pauses the engine for good."""
    with pytest.raises(RuntimeError, match=r"^The engine was not built to sleep: set sleep_level\.$"):
        engine.sleep(1)
    engine.wake_up()
    assert len(run_one(engine, PROMPT, max_tokens=2, seed=1).token_ids) == 2
    with pytest.raises(ValueError, match=r"^sleep_level: vLLM cannot put an engine to sleep on a cpu\.$"):
        make_engine("vllm", EngineConfig(llama_folder, dtype="float32", max_context_tokens=512, can_sleep=True))
