"""The prompt of a question, as tokens."""

from __future__ import annotations

import dataclasses

import numpy as np

from rllib_arpo.envs.env_config import ToolEnvConfig
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import Protocol
from rllib_arpo.envs.question import MATH, QA, Question
from rllib_arpo.envs.rewards.compose import needs_answers


def with_opening(question: Question, opening: str) -> Question:
    """The question with the text of its world at the end of the last user's message, or as one.

    Raises:
        DataError: neither asks anything.
    """
    if not opening:
        if not question.messages:
            raise DataError(f"{question.source}: neither the task nor the world asks anything.")
        return question
    messages = question.messages
    if not messages or messages[-1][0] != "user":
        return dataclasses.replace(question, messages=(*messages, ("user", opening)))
    text = messages[-1][1]
    asked = f"{text}\n\n{opening}" if text else opening
    return dataclasses.replace(question, messages=(*messages[:-1], ("user", asked)))


def asked_alone(question: Question, config: ToolEnvConfig) -> Question:
    """The question, where there is no world.

    Raises:
        DataError: it asks nothing, or no right answer is known though the reward needs one.
    """
    if not question.answers and question.ability in (MATH, QA) and needs_answers(config.reward):
        raise DataError(f"{question.source}: no right answer, which only a world or a reward of your own does without.")
    return with_opening(question, "")


def build_prompt(
    chat: Chat, protocol: Protocol, question: Question, config: ToolEnvConfig, instruction: str | None = None
) -> np.ndarray:
    """The prompt's token ids, [p] int32. `instruction` is that of `Protocol.prompt`.

    Raises:
        DataError: as `checked_prompt`.
    """
    return checked_prompt(protocol.prompt(chat, question, instruction), question, config)


def checked_prompt(prompt: np.ndarray, question: Question, config: ToolEnvConfig) -> np.ndarray:
    """The prompt.

    Raises:
        DataError: it is longer than `max_prompt_tokens`, or leaves no room for a response.
    """
    if config.max_prompt_tokens is not None and len(prompt) > config.max_prompt_tokens:
        limit = f"max_prompt_tokens = {config.max_prompt_tokens}"
        raise DataError(f"{question.source}: the prompt has {len(prompt)} tokens, more than {limit}.")
    if len(prompt) >= config.max_context_tokens:
        raise DataError(
            f"{question.source}: the prompt has {len(prompt)} tokens, which leaves no room for a response within"
            f" max_context_tokens = {config.max_context_tokens}."
        )
    return prompt
