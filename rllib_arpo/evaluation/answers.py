"""The rows of a question that a model was asked: the record's, with the answers and their scores."""

from __future__ import annotations

from rllib_arpo.core.tree import Trajectory
from rllib_arpo.envs.protocols.prompts import turn_text
from rllib_arpo.envs.protocols.protocol import Answer
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.rewards import exact_match, token_f1
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.evaluation.plan import Arm
from rllib_arpo.record.rows import QuestionFacts, Row, question_rows
from rllib_arpo.record.schema import BENCHMARK
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import SampledQuestion
from rllib_arpo.rollout.seeds import request_seed
from rllib_arpo.rollout.settings import RolloutSettings


def answered_rows(sampled: SampledQuestion, arm: Arm, rollout: RolloutSettings, commit: str | None) -> list[Row]:
    """The rows of a question that was sampled without forks in an environment of the arm."""
    env, tree = arm.first_env, episode_to_tree(sampled.episode)
    question = env.task.question(sampled.number, tuple(env.tools))
    asked = {
        "task": arm.task,
        "model": arm.model.name,
        "style": arm.style,
        "commit": commit,
        "question": question.messages[-1][1],
        "answers": list(question.answers),
        "ability": question.ability,
    }
    answers = {}
    for trajectory in tree.trajectories:
        seed = request_seed(rollout.seed, sampled.number, trajectory.agent_id, 0) if rollout.temperature else None
        answers[trajectory.agent_id] = {**asked, "sampling_seed": seed, **_scores(trajectory, question, env)}
    facts = QuestionFacts(BENCHMARK, 0, sampled.number, sampled.seconds)
    return question_rows(tree, facts, env.tokenizer, answers=answers)


def _scores(trajectory: Trajectory, question: Question, env: ToolEnv) -> Row:
    """The answer, and for knowledge its exact match and F1; both are 0 unless the answer has the right format."""
    answer = _answer(trajectory, env)
    if question.ability != QA:
        return {"answer": answer, "exact_match": float(trajectory.accuracy >= 1.0), "f1": None}
    if answer is None or not trajectory.format_valid:
        return {"answer": answer, "exact_match": 0.0, "f1": 0.0}
    f1 = max(token_f1(answer, alias) for alias in question.answers)
    return {"answer": answer, "exact_match": exact_match(answer, question.answers), "f1": f1}


def _answer(trajectory: Trajectory, env: ToolEnv) -> str | None:
    if not trajectory.turns:
        return None
    parsed = env.protocol.parse(turn_text(env.tokenizer, trajectory.turns[-1].token_ids, keep=env.protocol.end_tags))
    return parsed.text if isinstance(parsed, Answer) else None
