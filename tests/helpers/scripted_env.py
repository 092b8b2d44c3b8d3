"""An environment whose protocol is a single token: the last token of a turn says what the turn does."""

import asyncio

import gymnasium as gym
import numpy as np

from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus
from rllib_arpo.envs.forkable_env import INFO_STEP, OPTION_NUM_ROOTS, OPTION_QUESTION, ForkableMultiAgentEnv, StepInfo

PROMPT = (100, 101)
TOOL, ANSWER, MALFORMED = 1, 2, 3


class ScriptedEnv(ForkableMultiAgentEnv):
    """Turns ending with TOOL get the response [50, number of the turn]; ANSWER ends with `rewards[agent_id]`.

    env_config: `rewards` (agent id -> reward, default 0), `call_reward` (of each turn that calls, default 0),
    `delays` ((agent id, turn) -> seconds a tool takes), `own_prompts` (whether every question has a prompt of its own),
    `hooks` ("reset", "step", "fork", "add" or "close" -> a function of the environment and the call's arguments, which
    may raise, or return a coroutine, for which the call then waits).
    """

    stop = ("stop",)

    def __init__(self, env_config: dict | None = None):
        super().__init__()
        env_config = dict(env_config or {})
        self.rewards = env_config.get("rewards", {})
        self.delays = env_config.get("delays", {})
        self.call_reward = env_config.get("call_reward", 0.0)
        self.num_questions = env_config.get("num_questions")
        self.own_prompts = env_config.get("own_prompts", False)
        self.hooks = env_config.get("hooks", {})
        self.question = -1
        self.observation_space = self.action_space = gym.spaces.Text(max_length=1000)
        self.possible_agents = ["0"]
        self.agents = []
        self.forks: list[tuple[str, str]] = []
        self.added: list[str] = []

    def reset(self, *, seed=None, options=None):
        options = options or {}
        self.question = options.get(OPTION_QUESTION, 0)
        self.agents = [str(i) for i in range(options.get(OPTION_NUM_ROOTS, 1))]
        self.paths = {}
        observations = {agent: self._start(agent) for agent in self.agents}
        infos = {agent: {"question_id": f"q{self.question}"} for agent in self.agents}
        return self._after("reset", result=(observations, infos))

    async def step_agent(self, agent_id, token_ids):
        if (waiting := self._after("step", agent_id, token_ids)) is not None:
            await waiting
        turn = len(self.paths[agent_id]) - 1
        context = self.paths[agent_id][-1] + [int(t) for t in token_ids]
        last = int(token_ids[-1])
        if last == TOOL:
            await asyncio.sleep(self.delays.get((agent_id, turn), 0.0))
            observation = np.array([50, turn], np.int32)
            self.paths[agent_id].append([*context, 50, turn])
            call = ToolCall("tool", ToolStatus.OK, 0.0)
            return observation, self.call_reward, False, False, {INFO_STEP: StepInfo(tool_call=call)}
        reason = {ANSWER: StopReason.ANSWER, MALFORMED: StopReason.MALFORMED_CALL}.get(last, StopReason.TOKEN_LIMIT)
        reward = self.rewards.get(agent_id, 0.0) if reason is StopReason.ANSWER else -1.0
        info = StepInfo(stop_reason=reason, accuracy=float(reward > 0), format_valid=reward >= 0)
        truncated = reason is StopReason.TOKEN_LIMIT
        return np.array([], np.int32), reward, not truncated, truncated, {INFO_STEP: info}

    def fork_agent(self, parent, child):
        self._after("fork", parent, child)
        self.forks.append((parent, child))
        self.paths[child] = [list(path) for path in self.paths[parent]]
        self.agents.append(child)
        return np.array(self.paths[child][-1], np.int32)

    def add_agent(self, agent_id):
        self.added.append(agent_id)
        self.agents.append(agent_id)
        return self._after("add", agent_id, result=self._start(agent_id))

    def close_question(self):
        return self._after("close")

    def prompt(self) -> list[int]:
        return [*PROMPT, self.question % 250] if self.own_prompts else list(PROMPT)

    def _after(self, method, *args, result=None):
        """The result, or a coroutine that waits for what the method's hook has returned."""
        waiting = self.hooks[method](self, *args) if method in self.hooks else None
        if waiting is None:
            return result

        async def wait():
            await waiting
            return result

        return wait()

    def _start(self, agent_id):
        self.paths[agent_id] = [self.prompt()]
        return np.array(self.prompt(), np.int32)


def in_question(number, hook):
    """The hook, in one question only."""
    return lambda env, *args: hook(env, *args) if env.question == number else None
