"""An environment in which any model has turns, tool calls, and rewards that differ within a question."""

import numpy as np

from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus
from rllib_arpo.envs.forkable_env import INFO_STEP, StepInfo
from tests.helpers.faulty_env import FaultyEnv


class ParityEnv(FaultyEnv):
    """Every turn but the last calls a tool, whatever it says; the reward is the parity of all tokens of the last one.

    env_config: `num_turns` of each trajectory (default 2).
    """

    def __init__(self, env_config=None):
        super().__init__(env_config)
        self.num_turns = (env_config or {}).get("num_turns", 2)

    async def step_agent(self, agent_id, token_ids):
        turn, tokens = len(self.paths[agent_id]) - 1, [int(token) for token in token_ids]
        if turn + 1 < self.num_turns:
            self.paths[agent_id].append([*self.paths[agent_id][-1], *tokens, 50, turn])
            info = StepInfo(tool_call=ToolCall("tool", ToolStatus.OK, 0.0))
            return np.array([50, turn], np.int32), 0.0, False, False, {INFO_STEP: info}
        reward = float(sum(tokens) % 2)
        info = StepInfo(stop_reason=StopReason.ANSWER, accuracy=reward, format_valid=True)
        return np.array([], np.int32), reward, True, False, {INFO_STEP: info}
