"""An engine that hangs in a step: the run ends with a cause, within a bounded time, and the process can also end."""

import threading
import time
import weakref

import numpy as np
import pytest

from rllib_arpo.engine.engine_thread import EngineThread
from rllib_arpo.engine.scripted_engine import RandomPolicy, ScriptedReply
from rllib_arpo.rollout import engine_loop, env_runner, question_loop
from rllib_arpo.rollout.engine_loop import EngineFailureError
from rllib_arpo.rollout.messages import question_refs
from rllib_arpo.rollout.question_loop import QuestionLoop
from tests.helpers.configs import small_config
from tests.helpers.scripted_env import ANSWER, ScriptedEnv
from tests.helpers.scripts import scripted_engine
from tests.rollout.conftest import VOCAB_SIZE, settings


def hang(engine, after_steps: int) -> None:
    """The engine's step does not return any more."""
    step = engine.step

    def hanging():
        if engine.num_steps >= after_steps:
            threading.Event().wait()
        return step()

    engine.step = hanging


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(engine_loop, "STEP_TIMEOUT_S", 0.5)
    monkeypatch.setattr(env_runner, "CLOSE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(question_loop, "STEP_TIMEOUT_S", 0.3)
    monkeypatch.setattr(question_loop, "CLOSE_TIMEOUT_S", 0.2)


@pytest.mark.timeout(60)
def test_the_loop_ends_with_the_cause():
    policy = RandomPolicy(VOCAB_SIZE, replies=[[7, ANSWER]])
    engine = scripted_engine(policy.reply, vocab_size=VOCAB_SIZE)
    hang(engine, after_steps=1)
    with (
        QuestionLoop(engine, EngineThread()) as loop,
        pytest.raises(EngineFailureError, match=r"^TimeoutError: The engine has not finished a step within 0\.5 s\."),
    ):
        loop.submit(question_refs([0, 1]), [ScriptedEnv({})], settings())
        loop.take()


@pytest.mark.timeout(60)
def test_a_loop_stops_while_its_engine_hangs_outside_of_a_step(caplog):
    policy = RandomPolicy(VOCAB_SIZE, replies=[[7, ANSWER]])
    thread = EngineThread()
    loop = QuestionLoop(scripted_engine(policy.reply, vocab_size=VOCAB_SIZE), thread)
    with pytest.raises(TimeoutError):
        thread.call(threading.Event().wait, timeout_s=0.1)
    loop.stop()
    assert caplog.messages == ["The engine hangs: its thread stays until the process ends."]


@pytest.mark.timeout(60)
def test_questions_that_have_ended_are_taken_before_the_error():
    def script(request, _):
        return ScriptedReply([7, ANSWER] if request.prompt_token_ids[-1] == 0 else [7] * 50)

    engine = scripted_engine(script, vocab_size=VOCAB_SIZE, fail_at_step=6)
    with QuestionLoop(engine, EngineThread()) as loop:
        envs = [ScriptedEnv({"own_prompts": True}) for _ in range(2)]
        loop.submit(question_refs([0, 1]), envs, settings(num_rollouts=1))
        loop._thread.join()
        assert [question.ref.number for question in loop.take()] == [0]
        with pytest.raises(EngineFailureError):
            loop.take()


@pytest.mark.timeout(60)
def test_a_step_may_wait_longer_for_the_weights_before_it():
    policy = RandomPolicy(VOCAB_SIZE, replies=[[7, ANSWER]])
    thread = EngineThread()
    with QuestionLoop(scripted_engine(policy.reply, vocab_size=VOCAB_SIZE), thread) as loop:
        thread.submit(time.sleep, 1.0)
        loop.submit(question_refs([0]), [ScriptedEnv({})], settings())
        assert [question.ref.number for question in loop.take()] == [0]


def test_the_algorithm_ends_with_the_cause_and_stops(ray_cluster, model_folder):
    algorithm = small_config(model_folder).build_algo()
    hang(algorithm.env_runner.engine, after_steps=3)
    begin = time.perf_counter()
    with pytest.raises(RuntimeError, match=r"The engine has not finished a step within 0\.5 s"):
        algorithm.training_step()
    algorithm.stop()
    assert time.perf_counter() - begin < 30


def raises(error):
    raise error


def test_a_call_that_hangs_is_given_up_and_an_error_of_the_call_is_raised():
    thread = EngineThread()
    assert thread.call(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match=r"^of the tool$"):
        thread.call(raises, TimeoutError("of the tool"))
    with pytest.raises(TimeoutError, match=r"^The engine has not finished wait within 0\.1 s\.$"):
        thread.call(threading.Event().wait, timeout_s=0.1)
    assert thread._thread.daemon


def test_the_arguments_of_a_call_do_not_stay_until_the_next_one():
    """Such as all weights of a model, while an engine waits for questions."""
    thread, weights = EngineThread(), np.zeros(3)
    left = weakref.ref(weights)
    assert thread.call(len, weights) == 3
    del weights
    limit = time.monotonic() + 5.0
    while left() is not None and time.monotonic() < limit:
        time.sleep(0.01)
    assert left() is None
