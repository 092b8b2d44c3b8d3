"""A `CancelledError`, or a `TimeoutError`, that an environment raises by itself."""

import asyncio

from rllib_arpo.core.tree import StopReason
from rllib_arpo.engine.scripted_engine import ScriptedReply
from tests.helpers.scripted_env import ANSWER, ScriptedEnv
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
    assert questions[0].stats.stop_reasons == (StopReason.ERROR,) * 2
    (error, _) = questions[0].errors
    assert (error.kind, error.text) == ("RuntimeError", "it waited for something that was cancelled")
    assert questions[1].failure.message == "RuntimeError: it waited for something that was cancelled"
    assert questions[3].failure.message == "TimeoutError: the database is down"
    assert "Cancels did not close question 2 (RuntimeError('it waited" in caplog.text
    for number in (2, 4):
        assert questions[number].stats.stop_reasons == (StopReason.ANSWER,) * 2
