"""The engine for tests: its tokens, its timing and its bookkeeping are what the script says."""

import numpy as np
import pytest

from rllib_arpo.engine.engine import NO_WEIGHTS, EngineConfig, EntropyReady, GenerationRequest
from rllib_arpo.engine.scripted_engine import RandomPolicy, ScriptedEngine, ScriptedReply
from tests.engine.conftest import run
from tests.helpers.scripts import in_turn, scripted_engine


def summary(events) -> list[tuple]:
    return [
        (event.request_id, "entropies", event.entropies.tolist())
        if isinstance(event, EntropyReady)
        else (event.request_id, event.finish_reason, event.token_ids.tolist())
        for event in events
    ]


def test_one_token_a_step_and_events_in_their_steps():
    replies = in_turn(
        [
            ScriptedReply([5, 6, 7], entropies=[0.5, 1.5, 2.5]),
            ScriptedReply([8], delay=1),
            ScriptedReply([9, 9], fail_after=1),
            ScriptedReply([1, 2, 3, 4], finish_reason="length"),
        ]
    )
    engine = scripted_engine(replies)
    for name, window in (("a", 2), ("b", 2), ("c", 1), ("d", 4)):
        engine.submit(GenerationRequest(name, [1], max_tokens=4, entropy_window=window))
    assert [summary(engine.step()) for _ in range(4)] == [
        [("c", "error", [9])],
        [("a", "entropies", [0.5, 1.5]), ("b", "stop", [8])],
        [("a", "stop", [5, 6, 7])],
        [("d", "entropies", [1.0, 1.0, 1.0, 1.0]), ("d", "length", [1, 2, 3, 4])],
    ]
    assert not engine.has_unfinished()
    assert [request.request_id for request in engine.submitted] == ["a", "b", "c", "d"]


def test_the_random_policy_reports_its_own_distribution():
    engine = scripted_engine(None, seed=1, vocab_size=16, end_probability=0.2)
    request = GenerationRequest("a", [1, 2, 3], max_tokens=20, temperature=0.7, entropy_window=20, seed=6)
    finished = run(engine, request)["a"]
    tokens = finished.token_ids.tolist()
    policy = RandomPolicy(16, seed=1, end_probability=0.2)
    expected = [policy.log_probs([1, 2, 3, *tokens[:i]], 0.7)[token] for i, token in enumerate(tokens)]
    np.testing.assert_allclose(finished.log_probs, expected, rtol=1e-6)
    first = policy.log_probs([1, 2, 3], 0.7)
    np.testing.assert_allclose(finished.entropies[0], -(np.exp(first) * first).sum(), rtol=1e-6)
    assert np.exp(policy.log_probs([4])[15]) == pytest.approx(0.2)
    assert finished.finish_reason == ("stop" if tokens[-1] == 15 else "length")
    assert 15 not in tokens[:-1]


def test_a_sleeping_engine_can_only_wake_up():
    engine = ScriptedEngine(EngineConfig("none", can_sleep=True))
    engine.submit(GenerationRequest("a", [1], 1))
    engine.update_weights([("w", np.ones(1))], version=5)
    engine.sleep(1)
    assert engine.cancelled == ["a"]
    with pytest.raises(RuntimeError, match=r"^The engine sleeps: wake it up first\.$"):
        engine.submit(GenerationRequest("a", [1], 1))
    assert (engine.weight_version, engine.weights) == (NO_WEIGHTS, {"w": np.ones(1)})
    engine.wake_up()
    engine.wake_up()
    engine.sleep(2)
    assert (engine.sleeps, engine.weight_version, engine.weights) == ([1, 2], NO_WEIGHTS, {})
    with pytest.raises(RuntimeError, match=r"^The engine was not built to sleep: set sleep_level\.$"):
        scripted_engine(None).sleep(1)
