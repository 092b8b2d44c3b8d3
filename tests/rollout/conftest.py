"""`sample_tree`: runs the tree sampler on scripted engines and environments."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.core.tree import ForkDecision, QuestionTree
from rllib_arpo.engine.scripted_engine import RandomPolicy, ScriptedEngine
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.messages import FailedQuestion, QuestionRef, SampledQuestion, question_refs
from rllib_arpo.rollout.question_loop import QuestionLoop
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.rollout.tree_sampler import TreeSampler
from tests.helpers.scripted_env import ANSWER, TOOL, ScriptedEnv
from tests.helpers.scripts import by_prefix, scripted_engine

VOCAB_SIZE = 256


@dataclass
class Sampled:
    tree: QuestionTree
    prefix_tokens_reused: int
    engine: ScriptedEngine
    env: ScriptedEnv
    progress: list[dict[str, int]]

    @property
    def decisions(self) -> dict[tuple[str, int], ForkDecision]:
        """(agent id, turns of the path above the node) -> what was decided, in logical order."""
        return {
            (t.agent_id, t.num_inherited_turns + i): turn.decision
            for t in self.tree.trajectories
            for i, turn in enumerate(t.turns)
            if turn.decision is not None
        }

    @property
    def eligible(self) -> list[tuple[str, int]]:
        return [node for node, decision in self.decisions.items() if decision.eligible]

    @property
    def children(self) -> dict[tuple[str, int], int]:
        """Of the nodes that were forked."""
        return {node: decision.children for node, decision in self.decisions.items() if decision.children}

    def shape(self) -> dict[str, tuple]:
        """agent id -> (parent, inherited turns, own turns as tuples of tokens, stop reason)."""
        return {
            t.agent_id: (
                t.parent,
                t.num_inherited_turns,
                [tuple(turn.token_ids.tolist()) for turn in t.turns],
                str(t.stop_reason),
            )
            for t in self.tree.trajectories
        }


def settings(**changes) -> RolloutSettings:
    branching = BranchingParams(**{k: changes.pop(k) for k in list(changes) if k in BranchingParams.__slots__})
    values = {
        "num_rollouts": 2,
        "num_initial_rollouts": 1,
        "entropy_window": 1,
        "entropy_estimator": "exact",
        "entropy_normalization": "mean_log_vocab",
        "temperature": 1.0,
        "max_context_tokens": 1000,
        "max_response_tokens": 900,
        "max_turn_tokens": None,
        "question_deadline_s": 30.0,
        "seed": 0,
    }
    return RolloutSettings(branching=branching, **values | changes)


def ended(script, vocab_size, numbers, envs, config, **loop) -> dict[int, SampledQuestion | FailedQuestion]:
    """Number -> question, in the order in which a `QuestionLoop` on a scripted engine has ended them."""
    engine, results = scripted_engine(script, vocab_size=vocab_size), {}
    with ThreadPoolExecutor(1) as thread, QuestionLoop(engine, thread, **loop) as running:
        running.submit(question_refs(numbers), envs, config)
        while running.in_flight:
            results |= {question.ref.number: question for question in running.take()}
    return results


def sampled_tree(script, env_config=None, question=0, **changes) -> Sampled:
    engine = scripted_engine(script if callable(script) else by_prefix(script), vocab_size=VOCAB_SIZE)
    env = ScriptedEnv(env_config)
    progress = []

    async def main():
        with ThreadPoolExecutor(1) as executor:
            async with EngineLoop(engine, executor) as loop:
                told = {"on_progress": lambda **amounts: progress.append(amounts)}
                ref = QuestionRef(question)
                return await TreeSampler(env, loop, settings(**changes), VOCAB_SIZE, ref, **told).sample()

    sampled = asyncio.run(main())
    return Sampled(sampled.tree, sampled.prefix_tokens_reused, engine, env, progress)


@pytest.fixture
def sample_tree():
    return sampled_tree


@pytest.fixture
def sample_questions():
    """Runs a `QuestionLoop` with a random policy that calls tools -> the questions, in the order of their ends.

    Every question has a prompt of its own.
    """

    def run(numbers, env_config, num_envs=2, **changes) -> list[SampledQuestion]:
        policy = RandomPolicy(VOCAB_SIZE, replies=[[7, TOOL], [8, 8, 8, TOOL], [9, ANSWER], [7, 7, ANSWER]])
        envs = [ScriptedEnv({"own_prompts": True, **env_config}) for _ in range(num_envs)]
        return list(ended(policy.reply, VOCAB_SIZE, numbers, envs, settings(**changes)).values())

    return run
