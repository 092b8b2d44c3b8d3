"""Environments and engines that fail: every question has its M trajectories with named endings, or a cause is told."""

import asyncio
import contextlib
import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from rllib_arpo.core.figures import examined_nodes
from rllib_arpo.core.token_counts import all_path_tokens
from rllib_arpo.core.tree import StopReason
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.errors import ContractError, DataError, ForkRefused
from rllib_arpo.envs.forkable_env import INFO_STEP, StepInfo
from rllib_arpo.rollout.messages import QuestionRef, question_refs
from rllib_arpo.rollout.question_loop import QuestionLoop
from tests.helpers.scripted_env import ANSWER, PROMPT, TOOL, ScriptedEnv, in_question
from tests.helpers.scripts import in_turn, scripted_engine
from tests.helpers.trees import endings
from tests.rollout.conftest import VOCAB_SIZE, ended, settings


def top_ups(question) -> int:
    return sum(trajectory.topped_up for trajectory in question.tree.trajectories)


@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError])
def test_an_engine_that_dies_in_mid_tree_ends_the_loop_at_once(kind):
    requests = itertools.count()

    def dies(_request, _times_asked):
        if next(requests) == 5:
            raise kind("the engine died")
        return ScriptedReply([20, ANSWER])

    with pytest.raises(RuntimeError, match="the engine died"):
        ended(dies, VOCAB_SIZE, range(6), [ScriptedEnv() for _ in range(2)], settings(num_rollouts=4))


def test_requests_that_a_deadline_cuts_off_leave_the_engine_while_the_loop_goes_on():
    """Nothing else is generated, so that no later request makes the engine's loop look."""
    never = scripted_engine(lambda *_: ScriptedReply([7, ANSWER], delay=10**9), vocab_size=VOCAB_SIZE)
    limited = settings(num_rollouts=2, num_initial_rollouts=2, question_deadline_s=1.0)
    with ThreadPoolExecutor(1) as thread, QuestionLoop(never, thread) as loop:
        loop.submit([QuestionRef(0)], [ScriptedEnv()], limited)
        [question] = loop.take()
        limit = time.perf_counter() + 10
        while never.has_unfinished() and time.perf_counter() < limit:
            time.sleep(0.01)
        assert endings(question.tree) == (StopReason.DEADLINE,) * 2
        assert sorted(never.cancelled) == ["training/0/0/0", "training/0/1/0"]
        assert not never.has_unfinished()


@pytest.mark.parametrize("reason", [StopReason.ENGINE_FAILURE, StopReason.ERROR, StopReason.BROKEN_TOOL])
def test_a_masked_fork_keeps_its_place(sample_tree, monkeypatch, reason):
    """ "0.0" breaks at once; afterwards "0" comes to another node with a rise, and nothing is topped up."""
    step_agent = ScriptedEnv.step_agent

    async def broken(env, agent_id, token_ids):
        if agent_id == "0":
            return await step_agent(env, agent_id, token_ids)
        if reason is StopReason.ERROR:
            raise OSError("a bug in the environment")
        return np.zeros(0, np.int32), 0.0, True, False, {INFO_STEP: StepInfo(stop_reason=reason)}

    monkeypatch.setattr(ScriptedEnv, "step_agent", broken)
    first, second = (*PROMPT, 10, TOOL, 50, 0), (*PROMPT, 10, TOOL, 50, 0, *[20] * 9, TOOL, 50, 1)
    fails = ScriptedReply([21, ANSWER], fail_after=1 if reason is StopReason.ENGINE_FAILURE else None)
    script = {
        PROMPT: [ScriptedReply([10, TOOL], entropies=1.0), ScriptedReply([11, ANSWER])],
        first: [ScriptedReply([*[20] * 9, TOOL], entropies=3.0), fails],
        second: [ScriptedReply([30, ANSWER], entropies=3.0), ScriptedReply([31, ANSWER])],
    }
    sampled = sample_tree(script, num_rollouts=2)
    assert [(t.agent_id, t.stop_reason) for t in sampled.tree.trajectories] == [
        ("0", StopReason.ANSWER),
        ("0.0", reason),
    ]
    assert (list(sampled.decisions), sampled.eligible) == ([("0", 1), ("0", 2)], [("0", 1)])


def cannot_be_forked(env, parent, child):
    if env.question == 1:
        raise OSError("no copy of the tool's state")


def is_not_what_its_parent_was(env, agent_id, token_ids):
    if (env.question, agent_id) == (2, "0.0"):
        raise ForkRefused("another count")


def by_length(request, _times):
    if len(request.prompt_token_ids) < 5:
        return ScriptedReply([10, 11, TOOL], entropies=1.0)
    return ScriptedReply([*[20] * 30, ANSWER], entropies=3.0)


def test_where_the_environment_cannot_fork_a_top_up_takes_the_place():
    """Question 1 cannot be forked at its first node, in mid-step of an engine that also generates the others.

    The fork of question 2's shows in its first turn that it is not what its parent was.
    """
    hooks = {"fork": cannot_be_forked, "step": is_not_what_its_parent_was}
    envs = [ScriptedEnv({"own_prompts": True, "hooks": hooks}) for _ in range(4)]
    questions = ended(by_length, VOCAB_SIZE, range(4), envs, settings())
    for number, error in ((1, ("OSError", "no copy of the tool's state")), (2, ("ForkRefused", "another count"))):
        question = questions[number]
        assert (top_ups(question), len(question.tree.forks()), question.forks_refused) == (1, 0, 1)
        # The fork that was taken back had a turn.
        assert (question.num_generated_tokens, question.prefix_tokens_reused) == (68 + 31 * (number == 2), 0)
        assert sum(node.decision.children for node in examined_nodes(question.tree, 1)) == 0
        assert endings(question.tree) == (StopReason.ANSWER,) * 2
        assert [(e.agent_id, e.kind, e.text) for e in question.errors] == [("0.0", *error)]
    for number in (0, 3):
        question = questions[number]
        assert (endings(question.tree), len(question.tree.forks())) == ((StopReason.ANSWER,) * 2, 1)
        assert all_path_tokens(question.tree).tolist() == [34, 34]
        assert (question.num_generated_tokens, question.prefix_tokens_reused) == (3 + 31 + 31, 8)


def test_a_slow_reset_stops_no_other_question_and_each_question_is_closed_once(caplog):
    engine = scripted_engine(lambda *_: ScriptedReply([ANSWER]), vocab_size=VOCAB_SIZE)
    closed, ended = [], {}

    async def wait_in_reset(env):
        """Question 0 waits until 1 is closed, 2 and 4 for ever, and 3 cannot be reset."""
        while env.question in (2, 4) or (env.question == 0 and 1 not in closed):
            await asyncio.sleep(0.001)
        if env.question == 3:
            raise OSError("no server")

    async def wait_in_close(env):
        """Until the question's result was taken."""
        closed.append(env.question)
        while env.question not in (4, *ended):
            await asyncio.sleep(0.001)
        raise OSError("a question is closed, though its result stands")

    hooks = {"reset": wait_in_reset, "add": lambda *_: asyncio.sleep(0), "close": wait_in_close}
    envs = [ScriptedEnv({"hooks": hooks}) for _ in range(5)]
    with ThreadPoolExecutor(1) as thread, QuestionLoop(engine, thread) as loop:
        loop.submit(question_refs([0, 1]), envs, settings(num_rollouts=3))
        loop.submit(question_refs([2, 3]), envs, settings(question_deadline_s=1.0))
        while loop.in_flight:
            ended |= {question.ref.number: question for question in loop.take()}
        loop.submit(question_refs([4]), envs, settings())
        while all(env.question != 4 for env in envs):
            time.sleep(0.001)
    assert (sorted(closed[:4]), closed[4:]) == ([0, 1, 2, 3], [4])
    assert caplog.text.count("a question is closed, though its result stands") == 5
    for number in (0, 1):
        assert endings(ended[number].tree) == (StopReason.ANSWER,) * 3
    assert ended[2].failure.message.startswith("TimeoutError: ScriptedEnv, question 2, could not be reset in time.")
    assert ended[3].failure.message == "OSError: no server"


def test_an_error_of_closing_the_last_question_is_logged(caplog):
    def accuse(env):
        raise DataError("the copies share something")

    env = ScriptedEnv({"hooks": {"close": accuse}})
    ended(lambda *_: ScriptedReply([ANSWER]), VOCAB_SIZE, [0], [env], settings())
    assert "After the last question: the copies share something" in caplog.text


class Careless(ScriptedEnv):
    """What it returns is broken in one place."""

    def __init__(self, reward=0.0, observation=(50, 0), **step):
        super().__init__({})
        self._reward, self._observation, self._step = reward, observation, step

    async def step_agent(self, agent_id, token_ids):
        _, _, terminated, truncated, info = await super().step_agent(agent_id, token_ids)
        step = replace(info[INFO_STEP], **self._step)
        return self._observation, self._reward, terminated, truncated, {INFO_STEP: step}


@pytest.mark.parametrize(("returned", "sentence"), [
    ({"reward": float("nan")}, "Careless, question 0, agent 0: the reward must be a finite number, not nan."),
    ({"observation": (), "new_context": True}, "Careless, question 0, agent 0: a new context must have a token."),
    ({"accuracy": float("nan")}, "Careless, question 0, agent 0: the accuracy must be a finite number, not nan."),
    ({"observation": [[1], [2, 3]]}, "Careless, question 0, an observation must be a list of token ids, not [[1"),
    ({"observation": "text"}, "Careless, question 0, an observation must be a list of token ids, not 'text'."),
    ({"observation": [104]}, "Careless, question 0, an observation has the token id 104; the model has 0 to 103."),
])  # fmt: skip
def test_what_an_environment_must_not_return_ends_the_run_with_its_name(returned, sentence):
    script = in_turn([ScriptedReply([ANSWER])])
    with pytest.raises(ContractError, match=f"^{re.escape(sentence)}"):
        ended(script, VOCAB_SIZE, [0], [Careless(**returned)], settings(), num_token_ids=104)


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


def test_a_prompt_that_leaves_no_room_for_a_token_is_bad_data():
    config = settings(max_context_tokens=len(PROMPT))
    with pytest.raises(DataError) as raised:
        ended(lambda *_: ScriptedReply([ANSWER]), VOCAB_SIZE, [0], [ScriptedEnv()], config)
    assert str(raised.value) == (
        "ScriptedEnv, question 0, has a prompt of 2 tokens: nothing is left of max_context_tokens=2."
    )


def test_questions_that_are_dropped_end_though_the_environment_does_not_hear_it():
    """Its first step goes on after the cancellation; the trajectory takes no second one."""
    steps = []

    async def deaf(_env, *_args):
        steps.append(len(steps))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    engine = scripted_engine(lambda *_: ScriptedReply([TOOL]), vocab_size=VOCAB_SIZE)
    with ThreadPoolExecutor(1) as thread, QuestionLoop(engine, thread) as loop:
        loop.submit([QuestionRef(0)], [ScriptedEnv({"hooks": {"step": deaf}})], settings(num_rollouts=1))
        limit = time.perf_counter() + 60
        while not steps and time.perf_counter() < limit:
            time.sleep(0.01)
    assert steps == [0]


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
