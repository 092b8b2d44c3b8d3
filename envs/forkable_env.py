"""The environment interface that users write against: a `MultiAgentEnv` whose agents can be forked."""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from rllib_arpo.core.tree import StopReason, ToolCall
from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.support.loop_thread import uncancelled

#: Key of `reset`'s options: the number of the question to ask (an int >= 0; every number names one question).
OPTION_QUESTION = "question"
#: Key of `reset`'s options: how many root agents "0" .. "N-1" to start (default 1).
OPTION_NUM_ROOTS = "num_roots"
#: Key of every agent's info dict, whose value is a `StepInfo`.
INFO_STEP = "step"

#: Prefix of the note that names the tool that raised an exception: `error.add_note(TOOL_NOTE + name)`.
TOOL_NOTE = "tool: "


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a step reports in addition to its observation and reward.

    Attributes:
        tool_call: the call that was executed in this step, if any.
        stop_reason: set on the last step of an agent, None before.
        accuracy, format_valid: parts of the reward, meaningful on the last step.
        new_context: whether the observation replaces everything that the model has read and written so far.
        error: why a tool or a reward could not be used, on a last step; the user reads it.
    """

    tool_call: ToolCall | None = None
    stop_reason: StopReason | None = None
    accuracy: float = 0.0
    format_valid: bool = False
    new_context: bool = False
    error: Exception | None = None


def placeholder_id(agent_id: str, num_turns: int) -> str:
    """The id of an agent that never acts: it keeps the state at the node below that turn, for later forks."""
    return f"{agent_id}@{num_turns}"


def is_placeholder(agent_id: str) -> bool:
    return "@" in agent_id


def checked_ids(observation: Any, vocab_size: int, whose: str) -> np.ndarray:
    """An observation as the tokens that the model reads next, [m] int32.

    Raises:
        ContractError: it is not a list of integers from 0 to `vocab_size` - 1.
    """
    try:
        ids = np.asarray(observation)
    except (ValueError, TypeError):  # Lists of unequal lengths; tensors on a GPU.
        ids = np.asarray(None)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        found = f"{ids.dtype} of shape {ids.shape}" if ids.ndim else f"{observation!r:.80}"
        raise ContractError(f"{whose} an observation must be a list of token ids, not {found}.")
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        wrong = int(ids.min() if ids.min() < 0 else ids.max())
        raise ContractError(f"{whose} an observation has the token id {wrong}; the model has 0 to {vocab_size - 1}.")
    return ids.astype(np.int32)


async def settled(value: Any) -> Any:
    """The result of a method that may be a coroutine.

    Raises:
        RuntimeError: the method raises a `CancelledError`, though nobody cancels the task that waits for it.
    """
    with uncancelled("it waited for something that was cancelled"):
        return await value if inspect.isawaitable(value) else value


StepResult = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class ForkableMultiAgentEnv(MultiAgentEnv):
    """One question per episode, one agent per trajectory, one step per turn.

    Observations and actions are int32 arrays of token ids. An observation is what the model reads NEXT (the prompt
    at first, a tool response later), not the whole context, unless `StepInfo.new_context` says that it is. The
    environment enforces its own token and tool-call limits: it ends the agent itself, scored, with a `StopReason`.

    Attributes:
        stop: generation ends after the token that completes one of these strings (a tool call's end tag, ...).
        num_questions: the number of different questions; None if they are generated without end.
        tool_names: the tools that the model may call, as `ToolCall` names them. One that is not called in an iteration
            is reported with 0 calls.
    """

    stop: tuple[str, ...] = ()
    num_questions: int | None = None
    tool_names: tuple[str, ...] = ()
    agents: list[str]
    _just_ended: frozenset[str] = frozenset()

    @abstractmethod
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts one question with agents "0" .. "N-1".

        It runs in the event loop of all questions. If it has to wait for something, make it a coroutine (`async def`),
        and likewise `add_agent`; plain RLlib does not await, so it cannot use such an environment.

        Args:
            seed: sets the order of questions, if `options` names no question.
            options: `OPTION_QUESTION` and `OPTION_NUM_ROOTS`, both optional: without them the environment asks its
                next question with one agent, so that it also works in plain RLlib.

        Returns:
            (observations, infos); each observation is the prompt's token ids. `infos["0"]["question_id"]` names the
            question.
        """

    @abstractmethod
    async def step_agent(self, agent_id: str, token_ids: np.ndarray) -> StepResult:
        """Parses one turn's tokens, runs the tool that they call, or scores the answer.

        Args:
            agent_id: a living agent.
            token_ids: [n] int32, generated by the model, as sampled.

        Returns:
            (observation token ids [m], reward, terminated, truncated, info) with a `StepInfo` at `info[INFO_STEP]`.

        Raises:
            ForkRefused: in a fork's first turn: its state differs from its parent's, and it leaves the tree.
        """

    @abstractmethod
    def fork_agent(self, parent: str, child: str) -> np.ndarray:
        """Makes agent `child` from the state of `parent`: tokens so far, tool-call count, a copy of its tool state.

        The sampler calls it while the parent's next turn is being generated, never during the parent's `step_agent`, so
        the parent is exactly as its last tool response left it. The engine's next step waits for this method: make a
        slow fork in the background, and await it in the child's first `step_agent`.

        With `deterministic`, or a `budget_allocation` other than "first_come", the sampler decides later. It then forks
        a placeholder at once ("0@1": agent "0" at the node below turn 1), which never acts, and later forks the
        children from it. Placeholders live until the next `reset`.

        Args:
            parent: a living agent, or a placeholder.
            child: the id of the new agent.

        Returns:
            The child's first observation: the token ids of its whole context, tool response included.

        Raises:
            ValueError: an agent `child` exists already.
        """

    @abstractmethod
    def add_agent(self, agent_id: str) -> np.ndarray:
        """Adds a root agent (a top-up, or a root after pre-monitoring) to the running question; returns its prompt."""

    async def close_question(self) -> None:
        """Gives back what the question's agents hold: processes, sessions, sandboxes. Optional.

        Called once when a question has ended, also if a deadline, an error or the end of the run ended it; no agent
        acts after that.
        """

    def take_refused(self) -> int:
        """The number of agents' requests that were refused since the last call, in all environments of the pool.

        It includes the requests of trajectories and questions that failed.
        """
        return 0

    def another(self) -> Self | None:
        """Another environment of the same configuration, which shares the constant parts with this one.

        None (the default) means that the caller must make a new environment.
        """
        return None

    def step(self, actions: dict[str, np.ndarray]) -> tuple[dict[str, Any], ...]:
        """The synchronous step of plain RLlib: `step_agent` for every agent in `actions`, at once.

        An agent that ends stays in `agents` until the next step, since RLlib expects the returned agents there.
        """
        self.agents = [agent for agent in self.agents if agent not in self._just_ended]

        async def step_all() -> dict[str, StepResult]:
            steps = await asyncio.gather(*(self.step_agent(agent, np.asarray(a)) for agent, a in actions.items()))
            results = dict(zip(actions, steps, strict=True))
            self._just_ended = frozenset(agent for agent, result in results.items() if result[2] or result[3])
            if self._just_ended.issuperset(self.agents):
                await settled(self.close_question())
            return results

        results = asyncio.run(step_all())
        observations, rewards, terminateds, truncateds, infos = (
            {agent: result[i] for agent, result in results.items()} for i in range(5)
        )
        terminateds["__all__"] = self._just_ended.issuperset(self.agents)
        truncateds["__all__"] = False
        return observations, rewards, terminateds, truncateds, infos
