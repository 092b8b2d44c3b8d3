"""Tries an environment on its first question: builds the prompt, resets the world, calls the user's own rewards."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError
from rllib_arpo.envs.forkable_env import OPTION_QUESTION
from rllib_arpo.envs.protocols.protocol import Protocol
from rllib_arpo.envs.question import Question, Shot
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.rewards.compose import REWARDS, Reward, value_of
from rllib_arpo.envs.support.loop_thread import loop_thread
from rllib_arpo.envs.support.texts import first_line

if TYPE_CHECKING:
    from rllib_arpo.envs.tool_env import ToolEnv

#: Seconds that the rewards may take, together; a world has its own limit.
REWARDS_TIMEOUT_S = 60.0


def check_first_question(env: ToolEnv) -> None:
    """Asks the first question, for which the world is reset, and calls each of the user's own rewards once.

    Raises:
        ValueError: one sentence that names the key; a `DataError` if the row is at fault.
    """
    if env.config.make_world is None:
        env.reset(options={OPTION_QUESTION: 0})
    else:
        _blocking(_check_world(env, env.config.make_world.name), math.inf, "world")
    own = {name: reward for name, _, reward in env.config.make_scorer().terms if reward not in REWARDS.values()}
    if own and env.question is not None:
        _blocking(_check_rewards(own, env.question, env.protocol), REWARDS_TIMEOUT_S, "reward")


async def _check_world(env: ToolEnv, name: str) -> None:
    try:
        try:
            await env.reset(options={OPTION_QUESTION: 0})
        finally:
            await env.close_question()
    except (DataError, BrokenToolError):
        raise
    except Exception as error:
        raise ContractError(
            f"env_config['world']: {name} raises {type(error).__name__}: {first_line(error)}."
        ) from error


async def _check_rewards(rewards: Mapping[str, Reward], question: Question, protocol: Protocol) -> None:
    """Rewards a path that gives a right answer at once."""
    answer = question.answers[0] if question.answers else ""
    turn = protocol.example(Shot("", answer))[-1]["content"]
    path = FinishedPath(question, (turn,), format_valid=True, answer=answer, accuracy=float(bool(question.answers)))
    for name, reward in rewards.items():
        await value_of(f"env_config['reward']: {name!r}", partial(reward, path))


def _blocking(check: Coroutine[Any, Any, None], timeout_s: float, key: str) -> None:
    """Runs a check in a loop of its own, since the caller may be in one."""
    try:
        loop_thread("first question").run_blocking(check, timeout_s)
    except TimeoutError as error:
        raise ValueError(f"env_config[{key!r}] has not returned within {timeout_s:g} s.") from error
    except BrokenToolError as error:
        raise ValueError(f"env_config[{key!r}]: {error}") from error
