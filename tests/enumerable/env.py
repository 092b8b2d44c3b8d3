"""The tabular problem as an environment: its tokens are 0 .. V - 1, the prompt is [V], every tool response [V + 1]."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus
from rllib_arpo.envs.forkable_env import INFO_STEP, OPTION_NUM_ROOTS, ForkableMultiAgentEnv, StepInfo
from tests.enumerable.problem import History, TabularProblem

_CALLED = {INFO_STEP: StepInfo(tool_call=ToolCall("python", ToolStatus.OK, 0.0))}
_ANSWERED = {INFO_STEP: StepInfo(stop_reason=StopReason.ANSWER, format_valid=True)}
_NOTHING = np.zeros(0, dtype=np.int32)
_TEXT = gym.spaces.Text(max_length=1000)


def history_of(context: Sequence[int], problem: TabularProblem) -> History:
    """The tokens that the policy generated among all that it has read and written."""
    return tuple(int(token) for token in context if token < problem.vocab_size)


class TabularEnv(ForkableMultiAgentEnv):
    """A turn ends with an answer if the problem says that the history is finished, otherwise with a tool call."""

    def __init__(self, problem: TabularProblem):
        super().__init__()
        self._problem = problem
        self._response = np.array([problem.vocab_size + 1], dtype=np.int32)
        self.observation_space = self.action_space = _TEXT
        self.possible_agents, self.agents = ["0"], []

    def reset(self, *, seed=None, options=None):
        self._contexts: dict[str, list[int]] = {}
        self.agents = []
        agents = [str(i) for i in range(options[OPTION_NUM_ROOTS])]
        return {agent: self.add_agent(agent) for agent in agents}, {agent: {} for agent in agents}

    async def step_agent(self, agent_id, token_ids):
        context = self._contexts[agent_id]
        context += token_ids.tolist()
        history = history_of(context, self._problem)
        if self._problem.finished(history):
            return _NOTHING, self._problem.paid(history), True, False, _ANSWERED
        context += self._response.tolist()
        return self._response, self._problem.paid(history), False, False, _CALLED

    def fork_agent(self, parent, child):
        return self._start(child, self._contexts[parent])

    def add_agent(self, agent_id):
        return self._start(agent_id, [self._problem.vocab_size])

    def _start(self, agent_id: str, context: list[int]) -> np.ndarray:
        self._contexts[agent_id] = list(context)
        self.agents.append(agent_id)
        return np.array(context, dtype=np.int32)
