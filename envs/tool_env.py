"""The environment of a model that calls tools: one question, any number of forkable trajectories."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rllib_arpo.core.tree import TRUNCATED_STOP_REASONS, StopReason, ToolCall, ToolStatus
from rllib_arpo.envs.env_config import TEXT, read_env_config
from rllib_arpo.envs.errors import BrokenToolError, UnreadVerdict
from rllib_arpo.envs.first_question import check_first_question
from rllib_arpo.envs.forkable_env import (
    INFO_STEP,
    OPTION_NUM_ROOTS,
    OPTION_QUESTION,
    TOOL_NOTE,
    ForkableMultiAgentEnv,
    StepInfo,
    StepResult,
    is_placeholder,
)
from rllib_arpo.envs.prompt import (
    PathState,
    UnreadableError,
    asked_alone,
    build_prompt,
    next_messages,
    prompt_of_world,
    with_opening,
)
from rllib_arpo.envs.protocols.protocol import Answer, CallRequest, Malformed, Nothing, Parsed, end_of_turn
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.tasks.task import TEST
from rllib_arpo.envs.tools.tool import Tool, cut, run_tool
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.session import CopyChecks, WorldSession
from rllib_arpo.envs.worlds.world import Reply, WholeTurn

#: Endings that count as bad format for a world's score.
_BAD_FORMAT = frozenset({StopReason.MALFORMED_CALL, StopReason.TOKEN_LIMIT})
#: The information of a step that executed nothing.
_NO_CALL = StepInfo()


class ToolEnv(ForkableMultiAgentEnv):
    """Asks the questions of a task, runs the tools that the model calls, scores the answers.

    The keys of `env_config` are the fields of `ToolEnvConfig` and of the task's class. A trajectory ends with:

      - an answer, which is scored (ANSWER);
      - a turn that breaks the protocol, or a call of a tool that this environment does not have (MALFORMED_CALL);
      - neither call nor answer (NO_ANSWER);
      - a token limit (TOKEN_LIMIT). A path over the limit always ends in this way. So does a turn that exactly reaches
        the limit, unless its last token ends it, or it is a call, or an answer in its one box. So does a tool response
        that leaves no room for one more token; it is not cut, since the model could not answer it;
      - a call after max_tool_calls executed calls (TOOL_CALL_LIMIT; a call beyond max_calls_per_tool is answered by a
        refusal instead, and the trajectory goes on);
      - the end of its world (WORLD_ENDED), or a tool or world that cannot be used any more (BROKEN_TOOL, which is
        masked in training, and keeps the rewards of earlier replies).

    `env_config["reward"]` scores all other paths, unless the world does; by default all but an ANSWER in the right
    format get -1. RLlib demands spaces: here they describe one token, though observations are sequences of tokens.
    """

    def __init__(self, env_config: Mapping[str, Any], *, prepare: bool = True):
        """With `prepare`, tools do the slow work of their first calls now."""
        super().__init__()
        self.config, self.task, self.tools = read_env_config(env_config)
        self.tool_names = tuple(self.tools)
        self._make_world = self.config.make_world
        #: `Tool.make_world` -> the maker of its worlds, which knows how they fork.
        self._makers = {
            make: make if isinstance(make, WorldMaker) else WorldMaker(f"The world of the tool {name!r}", make)
            for name, tool in self.tools.items()
            if (make := tool.make_world) is not None
        }
        self._takes_text = self._takes_turns = False
        if self._make_world is not None:
            self._makers[self._make_world] = self._make_world
            world = self._make_world.sample
            self._takes_text, self._takes_turns = world.takes_text, world.takes_turns
        self._checks = CopyChecks()
        self.chat = self.config.make_chat()
        self.tokenizer = self.chat.tokenizer
        self.protocol = self.config.make_protocol(self.tools, self.chat)
        self.stop, end = self.protocol.stop, end_of_turn(self.chat)
        #: The tokens with which the model ends a turn itself.
        self._ends = set(self.tokenizer.convert_tokens_to_ids([*filter(None, (end, self.tokenizer.eos_token))]))
        if self._takes_text:
            self.tool_names = (*self.tool_names, TEXT)
            self.stop = tuple(dict.fromkeys((*self.stop, *filter(None, [end]))))
        self._scorer = self.config.make_scorer()
        self.num_questions = self.task.num_questions
        self.question: Question | None = None
        for tool in self.tools.values() if prepare else ():
            tool.prepare()
        self._start(None)
        # If `reset` gets no numbers, as in plain RLlib, the env runners ask 0, 1, 2, ... in turn.
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
        env._start(None)
        return env

    @classmethod
    def validate_config(cls, env_config: Mapping[str, Any]) -> None:
        """Checks `env_config`, and tries it on the first question, before any actor starts.

        Raises:
            ValueError: one clear sentence that names the key; a `DataError` if a data file is at fault.
        """
        check_first_question(ToolEnv(env_config, prepare=False))

    def take_refused(self) -> int:
        return 0 if self._make_world is None else self._make_world.sample.take_refused()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `ForkableMultiAgentEnv`. With a world, which is reset as well, the result must be awaited."""
        super(ForkableMultiAgentEnv, self).reset(seed=seed, options=options)
        options = options or {}
        number = options.get(OPTION_QUESTION)
        if number is None:
            number = self._take_next_question(seed)
        self._start(None)  # The next line may raise.
        question = self.task.question(int(number), tuple(self.tools))
        self._start(question)
        num_roots = options.get(OPTION_NUM_ROOTS, 1)
        if self._make_world is not None:
            return self._begun_by_world(question, self._trunks[self._make_world], num_roots)
        prompt = build_prompt(self.chat, self.protocol, asked_alone(question, self.config), self.config)
        return self._begun(prompt, num_roots)

    async def _begun_by_world(self, question: Question, trunk: WorldSession, num_roots: int) -> Any:
        world = await trunk.ready()
        opening = trunk.opening or ""
        prompt = prompt_of_world(self.chat, self.protocol, question, self.config, world, opening)
        if isinstance(opening, str):
            self.question = with_opening(question, opening)  # Rewards read what the model reads.
        return self._begun(prompt, num_roots)

    def _begun(self, prompt: np.ndarray, num_roots: int) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        assert self.question is not None
        self._prompt, info = prompt, {"question_id": self.question.question_id}
        observations = {str(i): self.add_agent(str(i)) for i in range(num_roots)}
        return observations, {agent: dict(info) for agent in observations}

    def add_agent(self, agent_id: str) -> np.ndarray:
        sessions = {make: trunk.fork_root() for make, trunk in self._trunks.items()}
        self._start_agent(agent_id, PathState(context=(self._prompt,), sessions=sessions))
        return self._prompt

    def fork_agent(self, parent: str, child: str) -> np.ndarray:
        path = self._paths[parent]
        # A placeholder never acts.
        sessions = {make: session.fork(begin=not is_placeholder(child)) for make, session in path.sessions.items()}
        self._start_agent(child, dataclasses.replace(path, sessions=sessions))
        self._unverified.add(child)
        return np.concatenate(path.context)

    async def close_question(self) -> None:
        sessions = [session for path in self._paths.values() for session in path.sessions.values()]
        closings = [session.close() for session in (*sessions, *self._trunks.values())]
        errors = [error for error in await asyncio.gather(*closings, return_exceptions=True) if error is not None]
        await self._checks.check(sessions)
        for error in errors:
            raise error

    async def step_agent(self, agent_id: str, token_ids: np.ndarray) -> StepResult:
        if agent_id in self._ended:
            raise ValueError(f"Agent {agent_id!r} has ended.")
        if self._make_world is not None:
            await self._verify_fork(agent_id)
        result = await self._turn(agent_id, token_ids)
        if result[2] or result[3]:
            self._ended.add(agent_id)
        return result

    async def _turn(self, agent_id: str, token_ids: np.ndarray) -> StepResult:
        token_ids = np.asarray(token_ids, dtype=np.int32)
        path = self._paths[agent_id]
        text = self.chat.turn_text(path.context[-1], token_ids, keep=self.protocol.end_tags)
        state = path.with_generated(text, token_ids)
        parsed = self.protocol.parse(text)
        room = self._room(state)
        if room < 0:
            return await self._end(state, StopReason.TOKEN_LIMIT)
        is_full = room == 0 or len(token_ids) >= (self.config.max_turn_tokens or np.inf)
        is_full = is_full and self._ends.isdisjoint(token_ids[-1:].tolist())
        said = None if is_full else self._text_for_world(state, text, parsed)
        if said is not None:
            return await self._say(agent_id, state, said)
        if isinstance(parsed, CallRequest) and parsed.name in self.tools:
            return await self._call(agent_id, state, parsed)
        reason = self._ending(parsed, is_full)
        answer = parsed if isinstance(parsed, Answer) and reason == StopReason.ANSWER else None
        return await self._end(state, reason, answer)

    def _text_for_world(self, state: PathState, text: str, parsed: Parsed) -> str | WholeTurn | None:
        """What a turn says to the world, if it was not cut off; None: it is not for the world."""
        if isinstance(parsed, Malformed):
            return None
        if self._takes_turns:
            return state.last_turn(self.protocol.said(text), parsed)
        return self.protocol.said(text) if self._takes_text and not isinstance(parsed, CallRequest) else None

    def _ending(self, parsed: Parsed, is_full: bool) -> StopReason:
        """Why a turn without an action ends its trajectory."""
        if isinstance(parsed, Answer) and not self._takes_text and not (is_full and parsed.text is None):
            return StopReason.ANSWER
        if is_full:
            return StopReason.TOKEN_LIMIT
        return StopReason.NO_ANSWER if isinstance(parsed, Nothing) else StopReason.MALFORMED_CALL

    async def _call(self, agent_id: str, state: PathState, request: CallRequest) -> StepResult:
        """Executes a call; extends the agent's path unless the trajectory ends here."""
        if state.num_tool_calls >= self.config.max_tool_calls:
            return await self._end(state, StopReason.TOOL_CALL_LIMIT)
        limit = self.config.max_calls_per_tool.get(request.name)
        if limit is not None and state.calls.count(request.name) >= limit:
            await self._verify_fork(agent_id)  # A later turn could not take the fork back.
            refusal = (
                f"The limit of {limit} calls of {request.name} is reached. You cannot use {request.name} any more."
            )
            response = self.protocol.response(self.chat, request, refusal, state.context[-1])
            return await self._go_on(agent_id, state, state.with_response(response))
        tool = self.tools[request.name]
        if tool.make_world is None:
            answer = partial(self._result, tool, request)
        else:
            answer = partial(state.sessions[tool.make_world].call, tool, request.argument)

        def framed(reply: Reply) -> tuple[np.ndarray, bool]:
            text = cut(self.tokenizer, reply.text, tool.max_result_tokens)
            return self.protocol.response(self.chat, request, text, state.context[-1]), False

        return await self._act(agent_id, state, request.name, request.argument_text, answer, framed)

    async def _say(self, agent_id: str, state: PathState, said: str | WholeTurn) -> StepResult:
        """Gives a turn or its text to the world; extends the agent's path unless the trajectory ends here."""
        if state.num_tool_calls >= self.config.max_tool_calls:
            return await self._end(state, StopReason.TOOL_CALL_LIMIT)
        session = state.sessions[self._make_world]

        def framed(reply: Reply) -> tuple[np.ndarray, bool]:
            limit = session.maker.sample.max_reply_tokens
            if isinstance(said, WholeTurn):
                return next_messages(self.protocol, self.chat, state, reply, limit)
            return self.protocol.reply(self.chat, cut(self.tokenizer, reply.text, limit), state.context[-1]), False

        try:
            return await self._act(agent_id, state, TEXT, str(said), partial(session.act, said), framed)
        except UnreadableError as error:
            tried = dataclasses.replace(state, calls=(*state.calls, TEXT))
            return await self._say(agent_id, tried, WholeTurn("", refused=str(error)))

    async def _result(self, tool: Tool, request: CallRequest) -> Reply:
        result = await run_tool(tool, request.argument)
        return Reply(result.text, status=result.status)

    async def _act(
        self,
        agent_id: str,
        state: PathState,
        name: str,
        argument: str,
        answer: Callable[[], Awaitable[Reply]],
        framed: Callable[[Reply], tuple[np.ndarray, bool]],
    ) -> StepResult:
        """Waits for the answer to an action.

        Args:
            name, argument: the tool and its argument, or `TEXT` and what was said.
            framed: the reply -> the tokens that the model reads, and whether they are a new context.
        """
        begin = time.perf_counter()
        try:
            await self._verify_fork(agent_id)
            begin = time.perf_counter()
            reply = await answer()
        except Exception as error:
            error.add_note(f"{TOOL_NOTE}{name}")
            if not isinstance(error, BrokenToolError):
                raise
            call = ToolCall(name, ToolStatus.ERROR, time.perf_counter() - begin, argument)
            return await self._end(state, StopReason.BROKEN_TOOL, call=call, error=error)
        call = ToolCall(name, reply.status, time.perf_counter() - begin, argument)
        if reply.done:
            done = state.with_call(name, reply.status == ToolStatus.OK, np.zeros(0, np.int32))
            return await self._end(done, StopReason.WORLD_ENDED, call=call, paid=reply.reward)
        tokens, new_context = framed(reply)
        after = state.with_call(name, reply.status == ToolStatus.OK, tokens, new_context)
        return await self._go_on(agent_id, state, after, StepInfo(call, new_context=new_context), reply.reward)

    async def _verify_fork(self, agent_id: str) -> None:
        """In a fork's first turn, waits until its worlds are in the states of its parent's.

        Raises:
            ForkRefused: their states differ.
        """
        if agent_id not in self._unverified:
            return
        for session in self._paths[agent_id].sessions.values():
            await session.ready_as_fork()
        self._unverified.discard(agent_id)

    async def _go_on(
        self,
        agent_id: str,
        before: PathState,
        after: PathState,
        info: StepInfo = _NO_CALL,
        paid: float = 0.0,
    ) -> StepResult:
        """Extends the agent's path by a response, unless it leaves no room for one more token."""
        if self._room(after) < 1:
            called = dataclasses.replace(before, calls=after.calls, executed=after.executed)
            return await self._end(called, StopReason.TOKEN_LIMIT, call=info.tool_call, paid=paid)
        self._paths[agent_id] = after
        return after.context[-1], paid, False, False, {INFO_STEP: info}

    async def _end(
        self,
        state: PathState,
        reason: StopReason,
        answer: Answer | None = None,
        call: ToolCall | None = None,
        paid: float = 0.0,
        error: BrokenToolError | None = None,
    ) -> StepResult:
        """Scores the path and ends the agent. `paid` is the reward of its last action, `error` what broke in it."""
        format_valid = answer is not None and self.protocol.format_error(state.turns) is None
        text = answer.text if answer is not None and format_valid else None
        assert self.question is not None
        path = FinishedPath(self.question, state.turns, format_valid, text, state.executed, state.num_tool_calls)
        score = Score(0.0, 0.0)
        try:
            if error is None:
                own = await self._score_of_world(state, path, reason)
                score = await self._scorer(path) if own is None else own
                if own is not None:
                    format_valid = reason not in _BAD_FORMAT
                    reason = StopReason.ANSWER if reason == StopReason.NO_ANSWER else reason
        except BrokenToolError as raised:
            error = raised
            reason = StopReason.UNREAD_VERDICT if isinstance(raised, UnreadVerdict) else StopReason.BROKEN_TOOL
        info = StepInfo(call, reason, score.accuracy, format_valid, error=error)
        truncated = reason in TRUNCATED_STOP_REASONS
        return np.zeros(0, np.int32), paid + score.reward, not truncated, truncated, {INFO_STEP: info}

    async def _score_of_world(self, state: PathState, path: FinishedPath, reason: StopReason) -> Score | None:
        """The world's score of a path; None: it leaves that to the configured reward."""
        if self._make_world is None:
            return None
        session = state.sessions[self._make_world]
        score = await session.score(dataclasses.replace(path, format_valid=reason not in _BAD_FORMAT))
        if score is None and reason == StopReason.WORLD_ENDED:
            return session.paid_score()
        return score

    def _start(self, question: Question | None) -> None:
        """Forgets the last question and its agents."""
        self.question, self._prompt = question, np.zeros(0, np.int32)
        self._paths: dict[str, PathState] = {}
        self._ended: set[str] = set()
        #: The worlds from which the roots' worlds are forked.
        self._trunks: dict[Any, WorldSession] = {}
        if question is not None:
            self._trunks = {make: WorldSession(maker, question) for make, maker in self._makers.items()}
        #: Forks that have not had a turn yet.
        self._unverified: set[str] = set()
        self.agents, self._just_ended = [], frozenset()

    def _start_agent(self, agent_id: str, path: PathState) -> None:
        if agent_id in self._paths:
            raise ValueError(f"Agent {agent_id!r} exists already.")
        self._paths[agent_id] = path
        self.agents.append(agent_id)

    def _room(self, state: PathState) -> int:
        """The number of tokens that may still be generated on this path; negative beyond the limit."""
        limit = min(len(self._prompt) + self.config.max_response_tokens, self.config.max_context_tokens)
        return limit - state.num_tokens

    def _take_next_question(self, seed: int | None) -> int:
        if seed is not None and self.task.split != TEST:
            self._next_question = int(np.random.default_rng(seed).integers(1 << 31))
        number = self._next_question
        self._next_question += self._stride
        return number
