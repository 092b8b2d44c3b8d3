"""A `CancelledError`, or a `TimeoutError`, that an environment raises by itself, or keeps to itself."""

import asyncio
import contextlib

import pytest

from rllib_arpo.core.tree import StopReason
from rllib_arpo.engine.scripted_engine import ScriptedReply
from tests.helpers.scripted_env import ANSWER, TOOL, ScriptedEnv
from tests.helpers.trees import endings
from tests.rollout.conftest import VOCAB_SIZE, ended, settings


class Cancels(ScriptedEnv):
    """Waits for a task that it has cancelled: in question 0's step, 1's reset and 2's close; 3's reset times out."""

    async def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        await self._wait(in_question=1)
        if self.question == 3:
            raise TimeoutError("the database is down")
        return result

    async def step_agent(self, agent_id, token_ids):
        await self._wait(in_question=0)
        return await super().step_agent(agent_id, token_ids)

    async def close_question(self):
        await self._wait(in_question=2)

    async def _wait(self, in_question):
        if self.question == in_question:
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task


def test_what_nobody_cancelled_is_an_error_of_the_environment_and_not_the_deadline(caplog):
    """The environment answers the next question after each."""
    questions = ended(lambda *_: ScriptedReply([ANSWER]), VOCAB_SIZE, range(5), [Cancels()], settings())
    assert list(questions) == [0, 1, 2, 3, 4]
    assert endings(questions[0].tree) == (StopReason.ERROR,) * 2
    (error, _) = questions[0].errors
    assert (error.kind, error.text) == ("RuntimeError", "it waited for something that was cancelled")
    assert questions[1].failure.message == "RuntimeError: it waited for something that was cancelled"
    assert questions[3].failure.message == "TimeoutError: the database is down"
    assert "Cancels did not close question 2 (RuntimeError('it waited" in caplog.text
    for number in (2, 4):
        assert endings(questions[number].tree) == (StopReason.ANSWER,) * 2


class Deaf(ScriptedEnv):
    """Goes on, or fails, when the deadline strikes: in question 0's reset, and in the first step of 1's "0"."""

    def __init__(self, fails):
        super().__init__()
        self._fails = fails

    async def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        await self._deaf(self.question == 0)
        return result

    async def step_agent(self, agent_id, token_ids):
        await self._deaf((self.question, agent_id, len(self.paths[agent_id])) == (1, "0", 1))
        return await super().step_agent(agent_id, token_ids)

    async def _deaf(self, here):
        if here:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            if self._fails:
                raise OSError("interrupted")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deadline_holds_though_the_environment_does_not_hear_it(deterministic, fails):
    """Every response would be forked, also below the call that went on."""

    def script(request, _times_asked):
        return ScriptedReply([ANSWER] if len(request.prompt_token_ids) > 5 else [TOOL])

    config = settings(
        num_rollouts=4,
        num_initial_rollouts=2,
        branching="always",
        question_deadline_s=1.0,
        deterministic=deterministic,
    )
    questions = ended(script, VOCAB_SIZE, range(2), [Deaf(fails), Deaf(fails)], config)
    trajectories = questions[1].tree.by_id()
    assert (trajectories["0"].stop_reason, len(trajectories["0"].turns)) == (StopReason.DEADLINE, 1)
    assert trajectories["1"].stop_reason is StopReason.ANSWER
    assert questions[0].failure.message == "TimeoutError: Deaf, question 0, could not be reset in time."
