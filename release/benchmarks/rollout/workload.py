"""Makes a synthetic workload for trajectories with tools: random prompts, turns of a fixed length, tools that sleep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from release.benchmarks.common.bench import MAX_CONTEXT_TOKENS, BenchmarkError, EngineHandle
from release.benchmarks.common.endless_models import NUM_BYTE_TOKENS
from rllib_arpo import ARPOConfig
from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus, fork_path
from rllib_arpo.envs.forkable_env import INFO_STEP, OPTION_NUM_ROOTS, OPTION_QUESTION, ForkableMultiAgentEnv, StepInfo
from rllib_arpo.rollout.messages import question_refs
from rllib_arpo.rollout.question_loop import QuestionLoop
from rllib_arpo.rollout.settings import RolloutSettings

#: The stop strings of the package's environment with both tools. The engine looks for them, but none occurs.
STOP = ("</python>", "</search>", "</answer>")
#: A latency is at most this many medians.
CUT = 10.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Q questions with M trajectories of n turns each, and a tool call between two turns.

    Attributes:
        turn_tokens, prompt_tokens, tool_tokens: the length of every turn, prompt and tool response.
        median_latency_s: the tools' median latency; latencies are lognormal with sigma 1. 0: tools answer at once.
        seed: the seed of prompts, tool responses, latencies and requests.
    """

    turn_tokens: int
    num_questions: int = 4
    num_trajectories: int = 16
    num_turns: int = 4
    prompt_tokens: int = 64
    tool_tokens: int = 16
    median_latency_s: float = 0.0
    seed: int = 0

    @property
    def num_generated_tokens(self) -> int:
        return self.num_questions * self.num_trajectories * self.num_turns * self.turn_tokens

    def prompt(self, question: int) -> list[int]:
        return self._rng(0, question).integers(0, NUM_BYTE_TOKENS, self.prompt_tokens).tolist()

    def tool_response(self, question: int, agent_id: str, turn: int) -> list[int]:
        rng = self._rng(1, question, turn, *fork_path(agent_id))
        return rng.integers(0, NUM_BYTE_TOKENS, self.tool_tokens).tolist()

    def latency(self, question: int, agent_id: str, turn: int) -> float:
        """Seconds that the tool takes after turn number `turn` (from 0)."""
        normal = self._rng(2, question, turn, *fork_path(agent_id)).standard_normal()
        return self.median_latency_s * float(min(np.exp(normal), CUT))

    def _rng(self, *words: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *words])


class WorkloadEnv(ForkableMultiAgentEnv):
    """Asks the questions of a `Workload`. `generated` keeps the tokens of every (question, agent), turn by turn."""

    stop = STOP

    def __init__(self, workload: Workload):
        super().__init__()
        self.observation_space = self.action_space = gym.spaces.Text(max_length=MAX_CONTEXT_TOKENS)
        self.possible_agents = ["0"]
        self.agents: list[str] = []
        self._workload = workload
        self.generated: dict[tuple[int, str], list[list[int]]] = {}
        self._contexts: dict[str, list[int]] = {}

    def reset(self, *, seed=None, options=None):
        self._question = options[OPTION_QUESTION]
        agents = [str(i) for i in range(options[OPTION_NUM_ROOTS])]
        return {agent: self.add_agent(agent) for agent in agents}, {agent: {} for agent in agents}

    def add_agent(self, agent_id):
        self.generated[self._question, agent_id] = []
        self._contexts[agent_id] = self._workload.prompt(self._question)
        return np.array(self._contexts[agent_id], np.int32)

    def fork_agent(self, parent, child):
        self.generated[self._question, child] = list(self.generated[self._question, parent])
        self._contexts[child] = list(self._contexts[parent])
        return np.array(self._contexts[child], np.int32)

    async def step_agent(self, agent_id, token_ids):
        workload, question = self._workload, self._question
        turns = self.generated[question, agent_id]
        turns.append([int(token) for token in token_ids])
        turn = len(turns) - 1
        if len(turns) == workload.num_turns:
            info = StepInfo(stop_reason=StopReason.ANSWER, format_valid=True)
            return np.zeros(0, np.int32), 0.0, True, False, {INFO_STEP: info}
        latency = workload.latency(question, agent_id, turn)
        if latency:
            await asyncio.sleep(latency)
        info = StepInfo(tool_call=ToolCall("sleep", ToolStatus.OK, latency))
        response = workload.tool_response(question, agent_id, turn)
        self._contexts[agent_id] += [*turns[-1], *response]
        return np.array(response, np.int32), 0.0, False, False, {INFO_STEP: info}


def rollout_settings(workload: Workload, **adaptive_rollout: Any) -> RolloutSettings:
    """Settings without forks, in which all trajectories start at the prompt; `adaptive_rollout` overrides options."""
    config = ARPOConfig().debugging(seed=workload.seed).language_model(max_context_tokens=MAX_CONTEXT_TOKENS)
    ours = {
        "num_rollouts": workload.num_trajectories,
        "num_initial_rollouts": workload.num_trajectories,
        "branching": "never",
        "max_response_tokens": MAX_CONTEXT_TOKENS,
        "max_turn_tokens": workload.turn_tokens,
        "question_deadline_s": 3600.0,
    }
    return RolloutSettings.from_config(config.adaptive_rollout(**(ours | adaptive_rollout)), explore=True)


def our_rollout(
    handle: EngineHandle, workload: Workload, *, entropy_window: int, deterministic: bool
) -> dict[tuple[int, str], list[list[int]]]:
    """Samples the workload like an env runner; returns the generated tokens of every (question, agent).

    Args:
        deterministic: gives every request its own seed.

    Raises:
        BenchmarkError: a turn's length is not the workload's.
    """
    envs = [WorkloadEnv(workload) for _ in range(workload.num_questions)]
    settings = rollout_settings(workload, entropy_window=entropy_window, deterministic=deterministic)
    with QuestionLoop(handle.engine, handle.thread) as loop:
        loop.submit(question_refs(range(workload.num_questions)), envs, settings)
        while loop.in_flight:
            loop.take()
    generated = {key: turns for env in envs for key, turns in env.generated.items()}
    check_lengths(workload, generated)
    return generated


def check_lengths(workload: Workload, generated: dict[tuple[int, str], list[list[int]]]) -> None:
    """Raises a BenchmarkError unless every turn has the workload's length."""
    lengths = [len(turn) for turns in generated.values() for turn in turns]
    expected = [workload.turn_tokens] * (workload.num_questions * workload.num_trajectories * workload.num_turns)
    if lengths != expected:
        raise BenchmarkError(f"There should be {len(expected)} turns of {workload.turn_tokens} tokens, not {lengths}.")
