"""Adaptive rollout of one question: every trajectory is a coroutine, forks are coroutines that it starts.

Follows docs/design.md, section 1, "Adaptive rollout"; the numbers in brackets below are its rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from rllib_arpo.core.branching import num_forks
from rllib_arpo.core.entropy import entropy_delta
from rllib_arpo.core.tree import QuestionTree, StopReason, Trajectory, Turn
from rllib_arpo.engine.engine import Finished, GenerationRequest
from rllib_arpo.envs.forkable_env import INFO_STEP, OPTION_NUM_ROOTS, OPTION_QUESTION, ForkableMultiAgentEnv, StepInfo
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.fork_schedule import ForkCandidate, ForkSchedule
from rllib_arpo.rollout.seeds import request_seed
from rllib_arpo.rollout.settings import RolloutSettings


@dataclass(slots=True)
class BranchingCounts:
    """What happened at the nodes of one tree, beyond what the tree itself tells.

    Attributes:
        eligible_nodes: nodes that were decided while budget remained.
        fork_events: nodes that got at least one child.
        initial_entropies, after_tool_entropies: window means in nats, one per root and one per decided node.
        deltas: dH of every decided node.
        prefix_tokens_reused: tokens of the forks' prefixes that came from the engine's prefix cache.
    """

    eligible_nodes: int = 0
    fork_events: int = 0
    initial_entropies: list[float] = field(default_factory=list)
    after_tool_entropies: list[float] = field(default_factory=list)
    deltas: list[float] = field(default_factory=list)
    prefix_tokens_reused: int = 0


@dataclass(slots=True)
class _Agent:
    """A trajectory that is being sampled. `context` is everything the model has read and written on its path."""

    agent_id: str
    context: list[int]
    num_prompt_tokens: int
    parent: _Agent | None = None
    num_inherited_turns: int = 0
    topped_up: bool = False
    initial_entropies: np.ndarray | None = None
    turns: list[Turn] = field(default_factory=list)
    num_children: int = 0
    reward: float = 0.0
    stop: StepInfo | None = None

    @property
    def num_path_turns(self) -> int:
        return self.num_inherited_turns + len(self.turns)

    def finished(self) -> Trajectory:
        stop = self.stop
        return Trajectory(
            agent_id=self.agent_id,
            turns=tuple(self.turns),
            stop_reason=stop.stop_reason,
            reward=self.reward,
            accuracy=stop.accuracy,
            format_valid=stop.format_valid,
            parent=self.parent.agent_id if self.parent else None,
            num_inherited_turns=self.num_inherited_turns,
            topped_up=self.topped_up,
        )


def _plain_step_info(terminated: bool, truncated: bool) -> StepInfo:
    """For an environment that tells no `StepInfo`: a terminated agent has answered, a truncated one hit a limit."""
    if terminated:
        return StepInfo(stop_reason=StopReason.ANSWER, format_valid=True)
    return StepInfo(stop_reason=StopReason.TOKEN_LIMIT if truncated else None)


class TreeSampler:
    """Samples the tree of one question in one environment."""

    def __init__(
        self,
        env: ForkableMultiAgentEnv,
        engine: EngineLoop,
        settings: RolloutSettings,
        vocab_size: int,
        question: int,
        *,
        evaluation: bool = False,
        on_progress: Callable[..., None] = lambda **_amounts: None,
    ):
        """
        Args:
            question: its number.
            evaluation: whether it is an evaluation question; a training question of the same number may be under way
                in the same engine.
            on_progress: is called with what has just been done: `tokens=`, `forks=`.
        """
        self._env = env
        self._engine = engine
        self._settings = settings
        self._vocab_size = vocab_size
        self._on_progress = on_progress
        self._question = question
        self._request_prefix = f"evaluation/{question}" if evaluation else str(question)
        self._rng = np.random.default_rng([settings.seed, question])
        self._fork_budget = settings.num_rollouts - settings.num_initial_rollouts
        self._counts = BranchingCounts()
        self._schedule = ForkSchedule(settings.budget_allocation) if settings.defers_forks else None
        self._agents: dict[str, _Agent] = {}

    async def sample(self) -> tuple[QuestionTree, BranchingCounts]:
        """Asks the question, once, and returns its tree: M trajectories, fewer only after a deadline."""
        settings = self._settings
        observations, infos = self._env.reset(
            options={OPTION_QUESTION: self._question, OPTION_NUM_ROOTS: settings.num_initial_rollouts}
        )
        self._prompt = np.asarray(observations["0"], np.int32)
        roots = [self._add(self._root(agent, observation)) for agent, observation in observations.items()]
        try:
            async with asyncio.timeout(settings.question_deadline_s):
                await self._run_all(roots)
                await self._run_all(self._top_up())
        except TimeoutError:
            self._stop_unfinished()
        trajectories = tuple(agent.finished() for agent in self._agents.values())
        question_id = infos.get("0", {}).get("question_id", self._question)
        return QuestionTree(str(question_id), self._prompt, trajectories), self._counts

    def _stop_unfinished(self) -> None:
        """[6] at the deadline: those that have not ended are masked, or count with the reward that was set for it."""
        reward = self._settings.deadline_reward
        for agent in self._agents.values():
            if agent.stop is None and reward is None:
                agent.stop = StepInfo(stop_reason=StopReason.DEADLINE)
            elif agent.stop is None:
                agent.stop, agent.reward = StepInfo(stop_reason=StopReason.TIME_LIMIT), reward

    def _root(self, agent_id: str, observation: np.ndarray, *, topped_up: bool = False) -> _Agent:
        if not np.array_equal(observation, self._prompt):
            raise ValueError(f"{self._name()} gave agent {agent_id} another prompt than agent 0.")
        return _Agent(agent_id, self._prompt.tolist(), len(self._prompt), topped_up=topped_up)

    def _add(self, agent: _Agent) -> _Agent:
        self._agents[agent.agent_id] = agent
        if self._schedule and not agent.topped_up:
            self._schedule.passed(agent.agent_id, agent.num_inherited_turns)
        return agent

    def _name(self) -> str:
        return f"{type(self._env).__name__}, question {self._question},"

    async def _run_all(self, agents: list[_Agent]) -> None:
        """Runs `agents` and every fork that they start until all have ended."""
        async with asyncio.TaskGroup() as self._group:
            for agent in agents:
                self._group.create_task(self._run(agent))

    def _top_up(self) -> list[_Agent]:
        """[5] What forks left of the budget is filled with fresh trajectories, all at once; they never fork."""
        first = self._settings.num_initial_rollouts
        names = map(str, range(first, first + self._fork_budget))
        return [self._add(self._root(name, self._env.add_agent(name), topped_up=True)) for name in names]

    async def _run(self, agent: _Agent) -> None:
        """One trajectory from where it begins to its end."""
        await self._generate_turns(agent)
        if self._schedule and not agent.topped_up:
            self._schedule.ended(agent.agent_id)
            self._decide_due()

    async def _generate_turns(self, agent: _Agent) -> None:
        """Generate a turn, let the environment answer, until the trajectory ends."""
        while agent.stop is None:
            max_tokens = self._turn_limit(agent)
            if max_tokens < 1:
                # Only an environment without limits of its own gets here; its rewards so far stand.
                agent.stop = StepInfo(stop_reason=StopReason.TOKEN_LIMIT)
                return
            finished = await self._engine.generate(
                self._request(agent, max_tokens), partial(self._on_entropies, agent, agent.num_path_turns)
            )
            if finished.finish_reason == "error":
                agent.stop = StepInfo(stop_reason=StopReason.ENGINE_FAILURE)
                return
            if agent.parent is not None and not agent.turns:
                self._counts.prefix_tokens_reused += finished.num_cached_tokens
            await self._step(agent, finished)

    async def _step(self, agent: _Agent, finished: Finished) -> None:
        observation, reward, terminated, truncated, info = await self._env.step_agent(
            agent.agent_id, finished.token_ids
        )
        step: StepInfo = info.get(INFO_STEP) or _plain_step_info(terminated, truncated)
        ended = terminated or truncated
        if ended != (step.stop_reason is not None):
            raise ValueError(
                f"{self._name()} stepped agent {agent.agent_id} with terminated={terminated}, truncated={truncated} "
                f"and stop_reason={step.stop_reason}: an agent has a stop reason exactly when it ends."
            )
        observation = np.asarray(observation, np.int32)
        agent.turns.append(
            Turn(
                token_ids=finished.token_ids,
                log_probs=finished.log_probs,
                entropies=finished.entropies,
                observation=observation,
                weight_versions=finished.weight_versions,
                tool_call=step.tool_call,
            )
        )
        agent.context += [*finished.token_ids.tolist(), *observation.tolist()]
        agent.reward += float(reward)
        self._on_progress(tokens=len(finished.token_ids))
        if ended:
            agent.stop = step

    def _turn_limit(self, agent: _Agent) -> int:
        """Tokens that the next turn may have."""
        settings = self._settings
        left = min(
            settings.max_context_tokens - len(agent.context),
            settings.max_response_tokens - (len(agent.context) - agent.num_prompt_tokens),
        )
        return left if settings.max_turn_tokens is None else min(left, settings.max_turn_tokens)

    def _request(self, agent: _Agent, max_tokens: int) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"{self._request_prefix}/{agent.agent_id}/{agent.num_path_turns}",
            prompt_token_ids=list(agent.context),
            max_tokens=max_tokens,
            temperature=self._settings.temperature,
            stop=tuple(self._env.stop),
            entropy_window=self._settings.entropy_window,
            entropy_estimator=self._settings.entropy_estimator,
            seed=self._seed(agent),
        )

    def _seed(self, agent: _Agent) -> int | None:
        if not self._settings.deterministic:
            return None
        return request_seed(self._settings.seed, self._question, agent.agent_id, agent.num_path_turns)

    def _on_entropies(self, agent: _Agent, num_path_turns: int, entropies: np.ndarray) -> None:
        """[1] keeps a root's `H_initial`; [4] examines the node below which `agent` goes on, once."""
        if agent.turns:
            if not agent.topped_up:
                self._examine(agent, num_path_turns, entropies)
        elif agent.parent is None:
            agent.initial_entropies = entropies
            if len(entropies):
                self._counts.initial_entropies.append(float(entropies.mean()))

    def _examine(self, agent: _Agent, num_path_turns: int, entropies: np.ndarray) -> None:
        """[2] measures the rise at the tool response that precedes the turn whose first `entropies` these are."""
        settings, counts = self._settings, self._counts
        delta = entropy_delta(entropies, agent.initial_entropies, self._vocab_size, settings.entropy_normalization)
        counts.deltas.append(delta)
        if len(entropies):
            counts.after_tool_entropies.append(float(entropies.mean()))
        if self._schedule is None:
            self._decide(ForkCandidate(agent.agent_id, num_path_turns, delta, agent.context, agent.agent_id))
            return
        if self._fork_budget:
            # The agent goes on, and with it its tool state: a placeholder that never acts stays at the node.
            place = f"{agent.agent_id}@{num_path_turns}"
            self._env.fork_agent(agent.agent_id, place)
            self._schedule.add(ForkCandidate(agent.agent_id, num_path_turns, delta, list(agent.context), place))
        self._schedule.passed(agent.agent_id, num_path_turns)
        self._decide_due()

    def _decide_due(self) -> None:
        while due := self._schedule.due():
            for candidate in due:
                self._decide(candidate)

    def _decide(self, candidate: ForkCandidate) -> None:
        """[3] forks below a node as often as the rule wants and the budget allows."""
        if not self._fork_budget:
            return
        self._counts.eligible_nodes += 1
        children = num_forks(candidate.delta, self._fork_budget, self._settings.branching, self._rng)
        self._counts.fork_events += children > 0
        for _ in range(children):
            self._fork(candidate)
        self._on_progress(forks=children)

    def _fork(self, candidate: ForkCandidate) -> None:
        parent = self._agents[candidate.agent_id]
        child_id = f"{parent.agent_id}.{parent.num_children}"
        prefix = [int(token) for token in self._env.fork_agent(candidate.source, child_id)]
        if prefix != candidate.prefix:
            raise ValueError(
                f"{self._name()} forked agent {child_id} with {len(prefix)} tokens that are not the "
                f"{len(candidate.prefix)} tokens of its parent's path."
            )
        parent.num_children += 1
        self._fork_budget -= 1
        child = _Agent(
            child_id,
            prefix,
            parent.num_prompt_tokens,
            parent=parent,
            num_inherited_turns=candidate.num_turns,
            initial_entropies=parent.initial_entropies,
        )
        self._add(child)
        self._group.create_task(self._run(child))
