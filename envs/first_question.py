"""Tries a configuration on its first question: builds the prompt, resets the world, calls the user's own rewards."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from rllib_arpo.envs.env_config import ToolEnvConfig
from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError
from rllib_arpo.envs.prompt import asked_alone, build_prompt, prompt_of_world
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import Protocol
from rllib_arpo.envs.question import Question, Shot
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.rewards.compose import REWARDS, Reward, value_of
from rllib_arpo.envs.support.loop_thread import loop_thread
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.tasks import Task
from rllib_arpo.envs.tools.tool import Tool
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.session import WorldSession

#: Seconds that the rewards may take, together; a world has its own limit.
REWARDS_TIMEOUT_S = 60.0


def check_first_question(config: ToolEnvConfig, task: Task, tools: Mapping[str, Tool]) -> None:
    """Builds the first question's prompt, for which its world is reset, and calls each of the user's own rewards once.

    Raises:
        ValueError: one sentence that names the key; a `DataError` if the row is at fault.
    """
    question, chat = task.question(0, tuple(tools)), config.make_chat()
    protocol = config.make_protocol(tools, chat)
    if config.make_world is None:
        build_prompt(chat, protocol, asked_alone(question, config), config)
    else:
        _blocking(_check_world(config.make_world, question, chat, protocol, config), math.inf, "world")
    terms = config.make_scorer().terms
    if own := {name: reward for name, _, reward in terms if reward not in REWARDS.values()}:
        _blocking(_check_rewards(own, question, protocol), REWARDS_TIMEOUT_S, "reward")


async def _check_world(
    make: WorldMaker, question: Question, chat: Chat, protocol: Protocol, config: ToolEnvConfig
) -> None:
    session = WorldSession(make, question)
    try:
        try:
            world = await session.ready()
            prompt_of_world(chat, protocol, question, config, world, session.opening or "")
        finally:
            await session.close()
    except (DataError, BrokenToolError):
        raise
    except Exception as error:
        raised = f"{type(error).__name__}: {first_line(error)}"
        raise ContractError(f"env_config['world']: {make.name} raises {raised}.") from error


async def _check_rewards(rewards: Mapping[str, Reward], question: Question, protocol: Protocol) -> None:
    """Rewards a path that gives a right answer at once."""
    answer = question.answers[0] if question.answers else ""
    turn = protocol.example(Shot("", (), answer))[-1]["content"]
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
