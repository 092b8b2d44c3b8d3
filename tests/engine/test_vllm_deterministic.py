"""`deterministic` on a real engine: the same trees and tokens, whatever the tools' timing and the batches it makes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rllib_arpo.rollout.messages import question_refs
from rllib_arpo.rollout.question_loop import QuestionLoop
from tests.engine.conftest import start_engine
from tests.helpers.scripted_env import ANSWER, TOOL, ScriptedEnv
from tests.rollout.conftest import settings

pytestmark = pytest.mark.slow

QUESTIONS, TURNS = 4, 3


class TimedTools(ScriptedEnv):
    """Every turn but the last calls a tool, which takes a time of `env_config["seed"]`'s choice."""

    def __init__(self, env_config):
        super().__init__(env_config)
        self._rng = np.random.default_rng(env_config["seed"])
        self._slowness = env_config["slowness"]

    async def step_agent(self, agent_id, token_ids):
        turn = len(self.paths[agent_id]) - 1
        self.delays = {(agent_id, turn): self._rng.uniform(0, self._slowness)}
        verb = TOOL if turn < TURNS - 1 else ANSWER
        result = await super().step_agent(agent_id, [*token_ids[:-1], verb])
        # The scripted protocol reads the last token; the path keeps what was generated.
        if verb == TOOL:
            self.paths[agent_id][-1] = [*self.paths[agent_id][-2], *map(int, token_ids), 50, turn]
        return result

    def prompt(self):
        return [*super().prompt(), self.question]


@pytest.fixture
def engine_and_thread(llama_folder):
    with ThreadPoolExecutor(1) as thread:
        engine = thread.submit(start_engine, llama_folder).result()
        yield engine, thread
        thread.submit(engine.close).result()


def sample(engine_and_thread, seed: int, slowness: float, num_envs: int) -> dict:
    """question -> agent -> (parent, inherited turns, tokens of each turn)."""
    engine, thread = engine_and_thread
    envs = [TimedTools({"seed": seed + i, "slowness": slowness}) for i in range(num_envs)]
    config = settings(
        deterministic=True, num_rollouts=6, num_initial_rollouts=3, entropy_window=4, max_turn_tokens=8,
        max_context_tokens=500, max_response_tokens=400,
    )  # fmt: skip
    sampled = []
    with QuestionLoop(engine, thread) as loop:
        loop.submit(question_refs(range(QUESTIONS)), envs, config)
        while loop.in_flight:
            sampled += loop.take()
    return {question.number: _tree(question) for question in sampled}


def _tree(question) -> dict:

    return {
        t.agent_id: (t.parent, t.num_inherited_turns, [turn.token_ids.tolist() for turn in t.turns])
        for t in question.tree.trajectories
    }


def test_trees_do_not_depend_on_timing(engine_and_thread):
    one = sample(engine_and_thread, 1, 0.0, num_envs=4)
    two = sample(engine_and_thread, 2, 0.05, num_envs=4)
    alone = sample(engine_and_thread, 3, 0.01, num_envs=1)
    assert one == two == alone
    assert any(parent for tree in one.values() for parent, _, _ in tree.values())
    assert len({str(tree) for tree in one.values()}) == QUESTIONS
