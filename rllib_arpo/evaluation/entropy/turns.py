"""Reads a sampled question: its samples, and their turns with the entropies of all their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.envs.protocols.prompts import turn_text
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import SampledQuestion


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One turn of one sample.

    Attributes:
        number, question_id: of the question.
        sample: its number within the question, from 0.
        round: how many tool responses precede the turn; 0: it follows the prompt.
        tool: the tool whose response precedes the turn; None after the prompt.
        read_ids: [m] int32, what the model read since its last turn: the prompt, or the tool response. The tokens
            before a turn are the `read_ids` and `token_ids` of the turns before it, and its own `read_ids`.
        token_ids: [n] int32, as sampled.
        entropies: [n] float32, nats, at the sampling temperature (greedy: at temperature 1).
        text: what was sampled.
        reward, accuracy, stop_reason: of the whole sample.
    """

    number: int
    question_id: str
    sample: int
    round: int
    tool: str | None
    read_ids: np.ndarray
    token_ids: np.ndarray
    entropies: np.ndarray
    text: str
    reward: float
    accuracy: float
    stop_reason: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory of a question.

    Attributes:
        number: of the question.
        sample: its number within the question, from 0.
        stop_reason: how it ended.
        turns: those that it sampled; none if it ended in its first one (deadline, engine failure).
    """

    number: int
    sample: int
    stop_reason: str
    turns: tuple[SampledTurn, ...]


def samples_of(sampled: SampledQuestion, env: ToolEnv) -> list[Sample]:
    """The samples of a question, sampled without forks in `env` or an equal one, with all entropies recorded."""
    tree = episode_to_tree(sampled.episode)
    return [
        Sample(
            number=sampled.number,
            sample=i,
            stop_reason=str(trajectory.stop_reason),
            turns=tuple(_turns(sampled.number, tree, i, env)),
        )
        for i, trajectory in enumerate(tree.trajectories)
    ]


def _turns(number: int, tree: QuestionTree, sample: int, env: ToolEnv) -> Iterator[SampledTurn]:
    trajectory = tree.trajectories[sample]
    read_ids, tool = tree.prompt, None
    for round, turn in enumerate(trajectory.turns):
        yield SampledTurn(
            number=number,
            question_id=tree.question_id,
            sample=sample,
            round=round,
            tool=tool,
            read_ids=read_ids,
            token_ids=turn.token_ids,
            entropies=turn.entropies,
            text=turn_text(env.tokenizer, turn.token_ids, keep=env.protocol.end_tags),
            reward=trajectory.reward,
            accuracy=trajectory.accuracy,
            stop_reason=str(trajectory.stop_reason),
        )
        read_ids, tool = turn.observation, turn.tool_call and turn.tool_call.name
