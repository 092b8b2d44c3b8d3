"""A `CancelledError`, or a `TimeoutError`, that an environment raises by itself, or keeps to itself."""

import asyncio
import contextlib

import pytest

from rllib_arpo.core.tree import StopReason
from rllib_arpo.engine.scripted_engine import ScriptedReply
from tests.helpers.scripted_env import ANSWER, TOOL, ScriptedEnv, in_question
from tests.helpers.trees import endings
from tests.rollout.conftest import VOCAB_SIZE, ended, settings


async def cancel(env, *_args):
    """Waits for a task that it has cancelled."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def cancel_or_time_out(env):
    if env.question == 1:
        await cancel(env)
    if env.question == 3:
        raise TimeoutError("the database is down")


def test_what_nobody_cancelled_is_an_error_of_the_environment_and_not_the_deadline(caplog):
    """In question 0's step, 1's and 3's reset and 2's close; the environment answers the next question after each."""
    hooks = {"reset": cancel_or_time_out, "step": in_question(0, cancel), "close": in_question(2, cancel)}
    env = ScriptedEnv({"hooks": hooks})
    questions = ended(lambda *_: ScriptedReply([ANSWER]), VOCAB_SIZE, range(5), [env], settings())
    assert list(questions) == [0, 1, 2, 3, 4]
    assert endings(questions[0].tree) == (StopReason.ERROR,) * 2
    (error, _) = questions[0].errors
    assert (error.kind, error.text) == ("RuntimeError", "it waited for something that was cancelled")
    assert questions[1].failure.message == "RuntimeError: it waited for something that was cancelled"
    assert questions[3].failure.message == "TimeoutError: the database is down"
    assert "ScriptedEnv did not close question 2 (RuntimeError('it waited" in caplog.text
    for number in (2, 4):
        assert endings(questions[number].tree) == (StopReason.ANSWER,) * 2


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deadline_holds_though_the_environment_does_not_hear_it(deterministic, fails):
    """It goes on, or fails, in question 0's reset, and in the first step of 1's "0".

    Every response would be forked, also below the call that went on.
    """

    async def deaf(env, *_args):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        if fails:
            raise OSError("interrupted")

    def deaf_in_a_step(env, agent_id, token_ids):
        is_first = (env.question, agent_id, len(env.paths[agent_id])) == (1, "0", 1)
        return deaf(env) if is_first else None

    def script(request, _times_asked):
        return ScriptedReply([ANSWER] if len(request.prompt_token_ids) > 5 else [TOOL])

    config = settings(
        num_rollouts=4,
        num_initial_rollouts=2,
        branching="always",
        question_deadline_s=1.0,
        deterministic=deterministic,
    )
    hooks = {"reset": in_question(0, deaf), "step": deaf_in_a_step}
    envs = [ScriptedEnv({"hooks": hooks}) for _ in range(2)]
    questions = ended(script, VOCAB_SIZE, range(2), envs, config)
    trajectories = questions[1].tree.by_id()
    assert (trajectories["0"].stop_reason, len(trajectories["0"].turns)) == (StopReason.DEADLINE, 1)
    assert trajectories["1"].stop_reason is StopReason.ANSWER
    assert questions[0].failure.message == "TimeoutError: ScriptedEnv, question 0, could not be reset in time."
