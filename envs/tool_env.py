"""The environment of a model that calls tools: one question, any number of forkable trajectories."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rllib_arpo.core.tree import TRUNCATED_STOP_REASONS, StopReason, ToolCall, ToolStatus
from rllib_arpo.envs.env_config import ToolEnvConfig, read_env_config
from rllib_arpo.envs.errors import BrokenToolError, DataError, ForkRefused, ToolError
from rllib_arpo.envs.forkable_env import (
    INFO_STEP,
    OPTION_NUM_ROOTS,
    OPTION_QUESTION,
    TOOL_NOTE,
    ForkableMultiAgentEnv,
    StepInfo,
    StepResult,
)
from rllib_arpo.envs.protocols.prompts import Chat, turn_text
from rllib_arpo.envs.protocols.protocol import Answer, CallRequest, Nothing, Protocol
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.tasks.task import TEST
from rllib_arpo.envs.tools.tool import cut, place_of, run_tool


@dataclass(frozen=True, slots=True)
class PathState:
    """The state of one agent; replaced at every call. Tools change only the contents of `tool_states` in place.

    Attributes:
        turns: the generated text of every turn.
        segments: the token ids after the prompt, in order: generated tokens, tool response, generated tokens, ...
        num_response_tokens: the length of all segments.
        calls: the tool of every executed call, in order, whatever its outcome.
        executed: names of the tools that ran with status OK.
        tool_states: `Tool.state_key` -> the state on this path, for tools that have a state; no other path shares it.
    """

    turns: tuple[str, ...] = ()
    segments: tuple[np.ndarray, ...] = ()
    num_response_tokens: int = 0
    calls: tuple[str, ...] = ()
    executed: frozenset[str] = frozenset()
    tool_states: Mapping[Hashable, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_tool_calls(self) -> int:
        return len(self.calls)

    def with_generated(self, text: str, token_ids: np.ndarray) -> PathState:
        """The path with one more turn of the model."""
        return dataclasses.replace(self.with_segment(token_ids), turns=(*self.turns, text))

    def with_call(self, name: str, succeeded: bool, response: np.ndarray) -> PathState:
        """The path with an executed call and its response."""
        return dataclasses.replace(
            self.with_segment(response),
            calls=(*self.calls, name),
            executed=self.executed | {name} if succeeded else self.executed,
        )

    def with_segment(self, token_ids: np.ndarray) -> PathState:
        """The path with further tokens, without an executed call."""
        segments = (*self.segments, token_ids)
        return dataclasses.replace(
            self, segments=segments, num_response_tokens=self.num_response_tokens + len(token_ids)
        )


class ToolEnv(ForkableMultiAgentEnv):
    """Asks the questions of a task, runs the tools that the model calls, scores the answers.

    Keys of `env_config`: those of `ToolEnvConfig` and of the task's class. How a turn ends its trajectory:

      - an answer, which is scored (ANSWER);
      - a turn that breaks the protocol, or a call of a tool that this environment does not have (MALFORMED_CALL);
      - neither call nor answer (NO_ANSWER);
      - a token limit, if it is reached in one of these cases or by an answer without its one box, or if it is exceeded
        in any case (TOKEN_LIMIT). A tool response that leaves no room for one more token also ends the trajectory in
        this way; it is not cut, since the model could not answer it;
      - a call after max_tool_calls executed calls (TOOL_CALL_LIMIT; a call beyond max_calls_per_tool is answered by a
        refusal instead, and the trajectory goes on);
      - a tool that cannot be brought back (BROKEN_TOOL).

    BROKEN_TOOL (masked in training) has the reward 0. `env_config["reward"]` rewards all other paths; by default every
    path except ANSWER with a right format gets -1.

    RLlib demands spaces: here they are the space of a single token; observations and actions are sequences of tokens.
    """

    def __init__(self, env_config: Mapping[str, Any]):
        super().__init__()
        self.config, self.task, self.tools = read_env_config(env_config)
        self.tool_names = tuple(self.tools)
        self._stateful = {tool.state_key: tool for tool in self.tools.values() if not tool.stateless}
        self.chat = self.config.make_chat()
        self.tokenizer = self.chat.tokenizer
        self.protocol = self.config.make_protocol(self.tools, self.chat)
        self.stop = self.protocol.stop
        self._scorer = self.config.make_scorer(self.task.comparisons())
        self.num_questions = self.task.num_questions
        for tool in self.tools.values():
            tool.prepare()
        self._start(None, np.zeros(0, np.int32))
        # Without numbers from outside, the env runners of plain RLlib ask 0, 1, 2, ... in turn.
        self._stride = max(1, getattr(env_config, "num_workers", None) or 1)
        self._next_question = max(0, getattr(env_config, "worker_index", 0) - 1)
        token = gym.spaces.Box(0, len(self.tokenizer) - 1, (1,), np.int32)
        self.observation_space = self.action_space = token
        self.possible_agents = ["0"]

    def another(self) -> Self | None:
        """See `ForkableMultiAgentEnv`. Returns None for a subclass, which may have a state of its own."""
        if type(self) is not ToolEnv:
            return None
        env = copy.copy(self)
        env._start(None, np.zeros(0, np.int32))
        return env

    @classmethod
    def validate_config(cls, env_config: Mapping[str, Any]) -> None:
        """Checks `env_config`, and the first question's prompt with the model's tokenizer, before any actor starts.

        Raises:
            ValueError: one clear sentence that names the key; a `DataError` if a data file is at fault.
        """
        config, task, tools = read_env_config(env_config)
        chat = config.make_chat()
        build_prompt(chat, config.make_protocol(tools, chat), task.question(0, tuple(tools)), config)

    def get_observation_space(self, agent_id: str) -> gym.Space:
        return self.observation_space

    def get_action_space(self, agent_id: str) -> gym.Space:
        return self.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        super(ForkableMultiAgentEnv, self).reset(seed=seed, options=options)
        options = options or {}
        number = options.get(OPTION_QUESTION)
        if number is None:
            number = self._take_next_question(seed)
        question = self.task.question(int(number), tuple(self.tools))
        self._start(question, build_prompt(self.chat, self.protocol, question, self.config))
        observations = {str(i): self.add_agent(str(i)) for i in range(options.get(OPTION_NUM_ROOTS, 1))}
        info = {"question_id": question.question_id}
        return observations, {agent: dict(info) for agent in observations}

    def add_agent(self, agent_id: str) -> np.ndarray:
        states = {key: tool.new_state() for key, tool in self._stateful.items()}
        self._start_agent(agent_id, PathState(tool_states=states))
        return self._prompt

    def fork_agent(self, parent: str, child: str) -> np.ndarray:
        path = self._paths[parent]
        states = {key: self._stateful[key].copy_state(state) for key, state in path.tool_states.items()}
        self._start_agent(child, dataclasses.replace(path, tool_states=states))
        self._unopened.add(child)
        return np.concatenate([self._prompt, *path.segments])

    async def close_question(self) -> None:
        states = [
            (self._stateful[key], state) for path in self._paths.values() for key, state in path.tool_states.items()
        ]
        closings = [tool.close_state(state) for tool, state in states]
        for error in await asyncio.gather(*closings, return_exceptions=True):
            if error is not None:
                raise error

    async def step_agent(self, agent_id: str, token_ids: np.ndarray) -> StepResult:
        if agent_id in self._ended:
            raise ValueError(f"Agent {agent_id!r} has ended.")
        result = await self._turn(agent_id, token_ids)
        if result[2] or result[3]:
            self._ended.add(agent_id)
        return result

    async def _turn(self, agent_id: str, token_ids: np.ndarray) -> StepResult:
        token_ids = np.asarray(token_ids, dtype=np.int32)
        text = turn_text(self.tokenizer, token_ids, keep=self.protocol.end_tags)
        state = self._paths[agent_id].with_generated(text, token_ids)
        parsed = self.protocol.parse(text)
        room = self._room(state)
        is_full = room == 0 or len(token_ids) >= (self.config.max_turn_tokens or np.inf)
        if room < 0:
            return await self._end(state, StopReason.TOKEN_LIMIT)
        if isinstance(parsed, Answer) and not (is_full and parsed.text is None):
            return await self._end(state, StopReason.ANSWER, parsed)
        if isinstance(parsed, CallRequest) and parsed.name in self.tools:
            return await self._call(agent_id, state, parsed)
        if is_full:
            return await self._end(state, StopReason.TOKEN_LIMIT)
        reason = StopReason.NO_ANSWER if isinstance(parsed, Nothing) else StopReason.MALFORMED_CALL
        return await self._end(state, reason)

    async def _call(self, agent_id: str, state: PathState, request: CallRequest) -> StepResult:
        """Executes a call; extends the agent's path unless the trajectory ends here."""
        if state.num_tool_calls >= self.config.max_tool_calls:
            return await self._end(state, StopReason.TOOL_CALL_LIMIT)
        if agent_id in self._unopened:
            await self._open_states(state)
            self._unopened.discard(agent_id)
        limit = self.config.max_calls_per_tool.get(request.name)
        if limit is not None and state.calls.count(request.name) >= limit:
            refusal = (
                f"The limit of {limit} calls of {request.name} is reached. You cannot use {request.name} any more."
            )
            response = self.protocol.response(self.chat, request, refusal, state.segments[-1])
            return await self._go_on(agent_id, state, state.with_segment(response))
        begin, argument = time.perf_counter(), _argument_text(request)
        try:
            tool = self.tools[request.name]
            tool_state = state.tool_states.get(tool.state_key)
            result = await run_tool(tool, request.argument, tool_state)
        except BrokenToolError:
            call = ToolCall(request.name, ToolStatus.ERROR, time.perf_counter() - begin, argument)
            return await self._end(state, StopReason.BROKEN_TOOL, call=call)
        except Exception as error:
            error.add_note(f"{TOOL_NOTE}{request.name}")
            raise
        call = ToolCall(request.name, result.status, time.perf_counter() - begin, argument)
        shown = cut(self.tokenizer, result.text, tool.max_result_tokens)
        response = self.protocol.response(self.chat, request, shown, state.segments[-1])
        after = state.with_call(request.name, result.status == ToolStatus.OK, response)
        return await self._go_on(agent_id, state, after, call)

    async def _open_states(self, path: PathState) -> None:
        """Makes a fork's states what its parent's were.

        Raises:
            ForkRefused: they cannot be.
        """
        for name in dict.fromkeys(path.calls):
            tool = self.tools[name]
            try:
                async with place_of(tool):
                    await tool.open_state(path.tool_states.get(tool.state_key))
            except (ToolError, BrokenToolError) as error:
                refusal = ForkRefused(str(error))
                refusal.add_note(f"{TOOL_NOTE}{name}")
                raise refusal from error
            except Exception as error:
                error.add_note(f"{TOOL_NOTE}{name}")
                raise

    async def _go_on(
        self, agent_id: str, before: PathState, after: PathState, call: ToolCall | None = None
    ) -> StepResult:
        """Extends the agent's path by a response, unless it leaves no room for one more token."""
        if self._room(after) < 1:
            return await self._end(before, StopReason.TOKEN_LIMIT, call=call)
        self._paths[agent_id] = after
        return after.segments[-1], 0.0, False, False, {INFO_STEP: StepInfo(tool_call=call)}

    async def _end(
        self, state: PathState, reason: StopReason, answer: Answer | None = None, call: ToolCall | None = None
    ) -> StepResult:
        """Scores the path and ends the agent."""
        format_valid = answer is not None and self.protocol.format_error(state.turns) is None
        text = answer.text if answer is not None and format_valid else None
        assert self.question is not None
        path = FinishedPath(self.question, state.turns, format_valid, text, state.executed, state.num_tool_calls)
        score = Score(0.0, 0.0)
        try:
            if reason != StopReason.BROKEN_TOOL:
                score = await self._scorer(path)
        except BrokenToolError:
            reason = StopReason.BROKEN_TOOL
        info = StepInfo(call, reason, score.accuracy, format_valid)
        truncated = reason in TRUNCATED_STOP_REASONS
        return np.zeros(0, np.int32), score.reward, not truncated, truncated, {INFO_STEP: info}

    def _start(self, question: Question | None, prompt: np.ndarray) -> None:
        """Forgets the last question and its agents."""
        self.question, self._prompt = question, prompt
        self._paths: dict[str, PathState] = {}
        self._ended: set[str] = set()
        #: Forks that have not called a tool yet.
        self._unopened: set[str] = set()
        self.agents, self._just_ended = [], frozenset()

    def _start_agent(self, agent_id: str, path: PathState) -> None:
        if agent_id in self._paths:
            raise ValueError(f"Agent {agent_id!r} exists already.")
        self._paths[agent_id] = path
        self.agents.append(agent_id)

    def _room(self, state: PathState) -> int:
        """The number of tokens that may still be generated on this path; negative beyond the limit."""
        limit = min(self.config.max_response_tokens, self.config.max_context_tokens - len(self._prompt))
        return limit - state.num_response_tokens

    def _take_next_question(self, seed: int | None) -> int:
        if seed is not None and self.task.split != TEST:
            self._next_question = int(np.random.default_rng(seed).integers(1 << 31))
        number = self._next_question
        self._next_question += self._stride
        return number


def build_prompt(chat: Chat, protocol: Protocol, question: Question, config: ToolEnvConfig) -> np.ndarray:
    """The prompt's token ids, [p] int32.

    Raises:
        DataError: it is longer than `max_prompt_tokens`, or leaves no room for a response.
    """
    prompt = protocol.prompt(chat, question)
    if config.max_prompt_tokens is not None and len(prompt) > config.max_prompt_tokens:
        limit = f"max_prompt_tokens = {config.max_prompt_tokens}"
        raise DataError(f"{question.source}: the prompt has {len(prompt)} tokens, more than {limit}.")
    if len(prompt) >= config.max_context_tokens:
        raise DataError(
            f"{question.source}: the prompt has {len(prompt)} tokens, which leaves no room for a response within"
            f" max_context_tokens = {config.max_context_tokens}."
        )
    return prompt


def _argument_text(request: CallRequest) -> str:
    argument = request.argument
    return argument if isinstance(argument, str) else json.dumps(argument, ensure_ascii=False)
