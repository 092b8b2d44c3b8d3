"""Samples one question adaptively: every trajectory is a coroutine, and starts its forks as further coroutines.

It follows docs/design.md, "Adaptive rollout"; the numbers in brackets below are the rules there.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rllib_arpo.core.branching import (
    NodeEvidence,
    branch_probability,
    decides_by_p,
    monitored_rollouts,
    num_forks,
)
from rllib_arpo.core.entropy import entropy_delta, entropy_level, running_delta
from rllib_arpo.core.tree import ForkDecision, QuestionTree, StopReason, TurnTimes, fork_path
from rllib_arpo.engine.engine import Finished, GenerationRequest
from rllib_arpo.envs.errors import ContractError, DataError, ForkRefused, finite
from rllib_arpo.envs.forkable_env import (
    INFO_STEP,
    OPTION_NUM_ROOTS,
    OPTION_QUESTION,
    ForkableMultiAgentEnv,
    StepInfo,
    StepResult,
    checked_ids,
    placeholder_id,
    settled,
)
from rllib_arpo.rollout.agent import Agent, plain_step_info, turn_of
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.fork_schedule import ForkCandidate, make_schedule
from rllib_arpo.rollout.messages import QuestionRef, SampledQuestion, TrajectoryError
from rllib_arpo.rollout.seeds import request_seed
from rllib_arpo.rollout.settings import RolloutSettings

#: As many token ids as int32 has.
ANY_TOKEN_ID = 1 << 31


class TreeSampler:
    """Samples the tree of one question in one environment."""

    def __init__(
        self,
        env: ForkableMultiAgentEnv,
        engine: EngineLoop,
        settings: RolloutSettings,
        vocab_size: int,
        ref: QuestionRef,
        *,
        num_token_ids: int = ANY_TOKEN_ID,
        on_progress: Callable[..., None] = lambda **_amounts: None,
    ):
        """
        Args:
            ref: the question; a training and an evaluation question of the same number may share the engine.
            num_token_ids: the model has embeddings of the token ids below this number.
            on_progress: called with the latest increments: `tokens=`, `forks=`, `tools=`.
        """
        self._env = env
        self._engine = engine
        self._settings = settings
        #: The units of entropy levels and of their rises.
        self._units = vocab_size, settings.entropy_normalization
        self._num_token_ids = num_token_ids
        self._on_progress = on_progress
        self._ref = ref
        self._rng = np.random.default_rng([settings.seed, ref.number])
        self._num_roots = 1 if settings.monitors_entropy else settings.num_initial_rollouts
        self._schedule = make_schedule(settings.budget_allocation, self._rng, deterministic=settings.deterministic)
        self._agents: dict[str, Agent] = {}
        #: Runs every trajectory, forks included (`_run_all`).
        self._group: asyncio.TaskGroup
        self._may_fork = True
        self._prefix_tokens_reused = 0
        self._tokens_of_removed_forks = 0
        self._errors: list[TrajectoryError] = []

    async def sample(self) -> SampledQuestion:
        """Asks the question and returns it with its tree: M trajectories, fewer after a deadline. Call it once."""
        self._began = time.perf_counter()
        try:
            async with asyncio.timeout(self._settings.question_deadline_s) as self._deadline:
                roots, question_id = await self._reset()
                await self._run_all([self._run(root) for root in roots])
                await self._top_up()
        except TimeoutError as error:
            if not self._deadline.expired():
                raise
            if not self._agents:
                raise TimeoutError(f"{self._name()} could not be reset in time.") from error
            for agent in self._agents.values():
                agent.stop = agent.stop or StepInfo(stop_reason=StopReason.DEADLINE)
        return self._sampled(str(question_id))

    def _sampled(self, question_id: str) -> SampledQuestion:
        """The trajectories come in logical order, since the order in which forks begin depends on the timing."""
        agents = sorted(self._agents.values(), key=lambda agent: fork_path(agent.agent_id))
        tree = QuestionTree(question_id, self._prompt, tuple(agent.trajectory() for agent in agents))
        return SampledQuestion(
            ref=self._ref,
            episode=TreeEpisode(tree),
            entropy_window=self._settings.entropy_window,
            seconds=self._seconds(),
            errors=tuple(self._errors),
            prefix_tokens_reused=self._prefix_tokens_reused,
            tokens_of_removed_forks=self._tokens_of_removed_forks,
            requests_refused=self._env.take_refused(),
            tools_offered=tuple(self._env.tool_names),
        )

    async def _settled(self, value: Any) -> Any:
        """The result of an environment's method; the deadline or a cancellation ends it even if the method goes on."""
        try:
            return await settled(value)
        finally:
            task = asyncio.current_task()
            if self._deadline.expired() or (task is not None and task.cancelling()):
                raise asyncio.CancelledError

    async def _top_up(self) -> None:
        """[5] adds trajectories from the prompt until there are M."""
        await self._run_all(self._add_roots(self._num_missing(), topped_up=True))

    def _num_missing(self) -> int:
        """How many of the M trajectories do not exist yet."""
        return self._settings.num_rollouts - len(self._agents)

    async def _reset(self) -> tuple[list[Agent], object]:
        """The first roots, and the question's id."""
        options = {OPTION_QUESTION: self._ref.asked, OPTION_NUM_ROOTS: self._num_roots}
        observations, infos = await self._settled(self._env.reset(options=options))
        if observations.keys() != set(map(str, range(self._num_roots))):
            begun = ", ".join(map(str, observations)) or "none"
            raise ContractError(f"{self._name()} began with agents {begun}: not {OPTION_NUM_ROOTS}={self._num_roots}.")
        self._prompt = checked_ids(observations["0"], self._num_token_ids, self._name())
        if len(self._prompt) >= self._settings.max_context_tokens:
            limit = f"max_context_tokens={self._settings.max_context_tokens}"
            raise DataError(f"{self._name()} has a prompt of {len(self._prompt)} tokens: nothing is left of {limit}.")
        for agent_id, observation in observations.items():
            self._check_prompt(agent_id, observation)
        roots = [self._add(self._root(agent_id)) for agent_id in observations]
        return roots, infos.get("0", {}).get("question_id", self._ref.asked)

    def _check_prompt(self, agent_id: str, observation: np.ndarray) -> None:
        if not np.array_equal(observation, self._prompt):
            raise ContractError(f"{self._name()} gave agent {agent_id} another prompt than agent 0.")

    def _root(self, agent_id: str, *, topped_up: bool = False) -> Agent:
        return Agent(agent_id, self._prompt.tolist(), len(self._prompt), topped_up=topped_up)

    def _add(self, agent: Agent) -> Agent:
        self._agents[agent.agent_id] = agent
        self._schedule.examined(agent.agent_id, agent.num_inherited_turns)
        return agent

    def _name(self) -> str:
        return f"{type(self._env).__name__}, question {self._ref.asked},"

    async def _run_all(self, trajectories: list[Coroutine[Any, Any, None]]) -> None:
        """Runs trajectories and every fork that they start until all have ended."""
        async with asyncio.TaskGroup() as self._group:
            for trajectory in trajectories:
                self._group.create_task(trajectory)

    def _add_roots(self, number: int, *, topped_up: bool = False) -> list[Coroutine[Any, Any, None]]:
        """Makes trajectories from the prompt; [5] top-ups use up the budget that forks left, so they never fork."""
        names = [str(self._num_roots + i) for i in range(number)]
        self._num_roots += number
        return [self._run_added(self._add(self._root(name, topped_up=topped_up))) for name in names]

    async def _run_added(self, root: Agent) -> None:
        self._check_prompt(root.agent_id, await self._settled(self._env.add_agent(root.agent_id)))
        await self._run(root)

    async def _run(self, agent: Agent) -> None:
        """Runs one trajectory from its start to its end."""
        await self._generate_turns(agent)
        self._schedule.ended(agent.agent_id)
        self._decide_due()

    async def _generate_turns(self, agent: Agent) -> None:
        """Generates turns and lets the environment answer, until the trajectory ends."""
        while agent.stop is None:
            max_tokens = self._turn_limit(agent)
            if max_tokens < 1:
                # Only an environment without limits of its own gets here; the agent keeps its rewards.
                agent.stop = StepInfo(stop_reason=StopReason.TOKEN_LIMIT)
                return
            started = self._seconds()
            finished = await self._engine.generate(
                self._request(agent, max_tokens), partial(self._on_entropies, agent, agent.num_path_turns)
            )
            if finished.finish_reason == "error":
                agent.stop = StepInfo(stop_reason=StopReason.ENGINE_FAILURE)
                return
            if agent.parent is not None and not agent.turns:
                self._prefix_tokens_reused += finished.num_cached_tokens
            self._on_progress(tokens=len(finished.token_ids))
            await self._step(agent, finished, TurnTimes(started, self._seconds()))

    def _seconds(self) -> float:
        """Seconds since the question began."""
        return time.perf_counter() - self._began

    async def _step(self, agent: Agent, finished: Finished, times: TurnTimes) -> None:
        try:
            observation, reward, terminated, truncated, info = await self._step_env(agent, finished)
        except asyncio.CancelledError:
            # The deadline (see `_settled`): the turn is whole, though its tool has not answered.
            agent.turns.append(turn_of(finished, times))
            raise
        except DataError:
            raise
        except Exception as error:
            if isinstance(error, ForkRefused) and agent.parent is not None and not agent.turns:
                self._remove_fork(agent, agent.parent, error)
                self._prefix_tokens_reused -= finished.num_cached_tokens
                self._tokens_of_removed_forks += len(finished.token_ids)
                return
            # A bug of the environment or of a tool ends only this trajectory.
            agent.turns.append(turn_of(finished, times))
            agent.stop = StepInfo(stop_reason=StopReason.ERROR)
            self._errors.append(TrajectoryError.of(error, agent.agent_id, StopReason.ERROR))
            return
        step: StepInfo = info.get(INFO_STEP) or plain_step_info(terminated, truncated)
        ended = terminated or truncated
        if ended != (step.stop_reason is not None):
            raise ContractError(
                f"{self._name()} stepped agent {agent.agent_id} with terminated={terminated}, truncated={truncated} "
                f"and stop_reason={step.stop_reason}: an agent has a stop reason exactly when it ends."
            )
        reward = finite(reward, f"{self._name()} agent {agent.agent_id}: the reward")
        finite(step.accuracy, f"{self._name()} agent {agent.agent_id}: the accuracy")
        observation = checked_ids(observation, self._num_token_ids, self._name())
        times = replace(times, answered=self._seconds())
        agent.turns.append(turn_of(finished, times, observation, step, reward))
        if step.new_context and not len(observation):
            raise ContractError(f"{self._name()} agent {agent.agent_id}: a new context must have a token.")
        if step.new_context:
            agent.context = observation.tolist()
        else:
            agent.context += [*finished.token_ids.tolist(), *observation.tolist()]
        if ended:
            agent.stop = step
            if step.error is not None:
                self._errors.append(TrajectoryError.of(step.error, agent.agent_id, step.stop_reason))

    async def _step_env(self, agent: Agent, finished: Finished) -> StepResult:
        """The environment's answer to a turn: a tool's response, or the grade of the trajectory."""
        self._on_progress(tools=1)
        try:
            return await self._settled(self._env.step_agent(agent.agent_id, finished.token_ids))
        finally:
            self._on_progress(tools=-1)

    def _turn_limit(self, agent: Agent) -> int:
        """The largest number of tokens for the next turn."""
        settings = self._settings
        left = min(
            settings.max_context_tokens - len(agent.context),
            settings.max_response_tokens - (len(agent.context) - agent.num_prompt_tokens),
        )
        return left if settings.max_turn_tokens is None else min(left, settings.max_turn_tokens)

    def _request(self, agent: Agent, max_tokens: int) -> GenerationRequest:
        seed = None
        if self._settings.deterministic:
            seed = request_seed(self._settings.seed, self._ref.number, agent.agent_id, agent.num_path_turns)
        return GenerationRequest(
            request_id=f"{self._ref.purpose}/{self._ref.number}/{agent.agent_id}/{agent.num_path_turns}",
            prompt_token_ids=list(agent.context),
            max_tokens=max_tokens,
            temperature=self._settings.temperature,
            stop=tuple(self._env.stop),
            entropy_window=self._settings.entropy_window,
            entropy_estimator=self._settings.entropy_estimator,
            record_entropies=self._settings.record_entropies,
            seed=seed,
            reshaping=self._settings.reshaping,
        )

    def _on_entropies(self, agent: Agent, num_path_turns: int, entropies: np.ndarray) -> None:
        """[1] keeps a root's `H_initial`; [4] examines the node below which `agent` continues, once."""
        if agent.turns:
            self._examine(agent, num_path_turns, entropies)
        elif agent.parent is None:
            agent.initial_entropies = entropies
            if len(self._agents) == 1 and self._settings.monitors_entropy:
                for trajectory in self._add_roots(self._monitored_roots(entropies) - 1):
                    self._group.create_task(trajectory)

    def _examine(self, agent: Agent, num_path_turns: int, entropies: np.ndarray) -> None:
        """[2] measures the node before the turn that begins with `entropies`."""
        assert agent.initial_entropies is not None  # The root's first turn is generated.
        if self._settings.entropy_window:  # An evaluation without forks measures nothing.
            delta = self._delta(entropies, agent.turns[-1].tool, agent.initial_entropies)
            level = _finite_entropy(entropy_level(entropies, *self._units))
            agent.decisions[num_path_turns] = ForkDecision(level, delta)
            if self._num_missing() and self._may_fork:
                self._schedule.add(self._candidate(agent, num_path_turns, delta))
        self._schedule.examined(agent.agent_id, num_path_turns)
        self._decide_due()

    def _delta(self, entropies: np.ndarray, tool: str, initial: np.ndarray) -> float:
        """dH of the `entropies` after a response of `tool`; `initial` are the entropies of the root's first tokens."""
        earlier = self._settings.rollout_reference.by_tool.get(tool)
        if self._settings.entropy_baseline == "running" and earlier is not None:
            return _finite_entropy(running_delta(entropies, earlier, *self._units))
        return _finite_entropy(entropy_delta(entropies, initial, *self._units))

    def _monitored_roots(self, entropies: np.ndarray) -> int:
        """AEPO: the first tokens of the first root determine the number of roots, including itself."""
        settings = self._settings
        after_tool, sensitivity = settings.rollout_reference.after_tool, settings.pre_monitoring_sensitivity
        assert after_tool is not None  # `monitors_entropy` ensures it.
        assert sensitivity is not None
        excess = _finite_entropy(running_delta(entropies, after_tool, *self._units))
        return monitored_rollouts(excess, settings.num_rollouts, sensitivity)

    def _candidate(self, agent: Agent, num_path_turns: int, delta: float) -> ForkCandidate:
        if not self._schedule.defers:
            return ForkCandidate(agent.agent_id, num_path_turns, delta, agent.context, agent.agent_id)
        # The agent and its tool state go on, so a placeholder that never acts keeps the state at the node.
        placeholder = placeholder_id(agent.agent_id, num_path_turns)
        made = self._fork_in_env(agent.agent_id, placeholder)
        # A refusal has its effect when the node is decided, whatever the timing.
        refusal = made if isinstance(made, Exception) else None
        return ForkCandidate(agent.agent_id, num_path_turns, delta, list(agent.context), placeholder, refusal)

    def _decide_due(self) -> None:
        while due := self._schedule.due():
            for candidate in due:
                self._decide(candidate)

    def _decide(self, candidate: ForkCandidate) -> None:
        """[4] creates as many children of a node as the rule wants and the budget allows."""
        budget = self._num_missing() if self._may_fork else 0
        if not budget:
            return
        agent = self._agents[candidate.agent_id]
        params = self._settings.branching
        earlier = self._settings.rollout_reference.rises_at.get(candidate.num_turns, ())
        node = NodeEvidence(candidate.delta, candidate.num_turns, agent.consecutive_forks(candidate.num_turns), earlier)
        wanted = num_forks(node, budget, params, self._rng)
        children = sum(self._fork(candidate) for _ in range(wanted))
        agent.decisions[candidate.num_turns] = replace(
            agent.decisions[candidate.num_turns],
            probability=branch_probability(node, params) if decides_by_p(params.branching) else None,
            eligible=True,
            children=children,
            budget=budget,
        )
        self._on_progress(forks=children)

    def _fork_in_env(self, source: str, child_id: str) -> list[int] | Exception:
        """Creates a fork in the environment: its prefix, or the error that refuses it."""
        try:
            prefix = self._env.fork_agent(source, child_id)
        except DataError:
            raise
        except Exception as error:
            return error
        return [int(token) for token in checked_ids(prefix, self._num_token_ids, self._name())]

    def _refused(self, child_id: str, error: Exception) -> None:
        """Ends all forking in this question, and keeps the error."""
        self._may_fork = False
        self._errors.append(TrajectoryError.of(error, child_id, None))

    def _remove_fork(self, child: Agent, parent: Agent, error: ForkRefused) -> None:
        """Takes a fork out of the tree in its first turn; a top-up replaces it."""
        child.stop = StepInfo(stop_reason=StopReason.ERROR)
        del self._agents[child.agent_id]
        decision = parent.decisions[child.num_inherited_turns]
        parent.decisions[child.num_inherited_turns] = replace(decision, children=decision.children - 1)
        self._on_progress(forks=-1)
        self._refused(child.agent_id, error)

    def _fork(self, candidate: ForkCandidate) -> bool:
        """Makes a child; returns False if the environment refuses, and a top-up then replaces the child."""
        parent = self._agents[candidate.agent_id]
        child_id = f"{parent.agent_id}.{parent.num_children}"
        if not self._may_fork:
            return False
        prefix = candidate.refusal or self._fork_in_env(candidate.source, child_id)
        if isinstance(prefix, Exception):
            self._refused(child_id, prefix)
            return False
        if prefix != candidate.prefix:
            raise ContractError(
                f"{self._name()} forked agent {child_id} with {len(prefix)} tokens that are not the "
                f"{len(candidate.prefix)} tokens of its parent's path."
            )
        parent.num_children += 1
        child = Agent(
            child_id,
            prefix,
            parent.num_prompt_tokens,
            parent=parent,
            num_inherited_turns=candidate.num_turns,
            initial_entropies=parent.initial_entropies,
        )
        self._add(child)
        self._group.create_task(self._run(child))
        return True


def _finite_entropy(value: float) -> float:
    """Raises ValueError if the engine's entropies are not finite: they would also affect later questions."""
    if not math.isfinite(value):
        raise ValueError(f"the engine's entropies must be finite, got {value}")
    return value
