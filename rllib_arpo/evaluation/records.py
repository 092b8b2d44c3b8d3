"""The record of one sample: its text turn by turn, its score, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from rllib_arpo.core.pass_at_k import is_correct
from rllib_arpo.core.tree import MASKED_STOP_REASONS, TRUNCATED_STOP_REASONS, ToolStatus, Trajectory, Turn
from rllib_arpo.envs.protocols.prompts import turn_text
from rllib_arpo.envs.protocols.protocol import Answer
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.rewards import exact_match, token_f1
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import SampledQuestion
from rllib_arpo.rollout.seeds import request_seed
from rllib_arpo.rollout.settings import RolloutSettings


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn.

    Attributes:
        text: what the model wrote.
        num_tokens: of it.
        response: the text that it read next; None after the last turn.
        tool, tool_status, tool_seconds: of the executed call, if there was one.
        entropies: of its tokens, in nats; None if they were not recorded.
    """

    text: str
    num_tokens: int
    response: str | None
    tool: str | None
    tool_status: str | None
    tool_seconds: float | None
    entropies: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One trajectory.

    Attributes:
        sample: its number within the question, from 0.
        seed: of the sampler of its first turn (later turns have seeds made of the same parts); None: greedy.
        answer: its answer; None without one.
        reward, accuracy, format_valid: as in training.
        correct: whether the accuracy is 1 (`core.pass_at_k.is_correct`).
        exact_match: for knowledge ("qa"), equality of normalised texts with an alias; otherwise the same as `correct`
            (for mathematics: symbolic equality).
        f1: the best token F1 over the aliases; None unless the question is one of knowledge.
        tool_calls, tool_calls_failed: executed ones, and those of them that ended with an error or a time-out.
        response_tokens: generated ones.
        truncated: ended by a limit of tokens or tool calls.
        masked: ended by a deadline, a broken tool or the engine: it counts as wrong.
    """

    sample: int
    seed: int | None
    turns: tuple[TurnRecord, ...]
    answer: str | None
    reward: float
    accuracy: float
    correct: bool
    exact_match: float
    f1: float | None
    format_valid: bool
    tool_calls: int
    tool_calls_failed: int
    response_tokens: int
    stop_reason: str
    truncated: bool
    masked: bool


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """One question with its samples. `seconds`: wall time from its first request to its last ending."""

    number: int
    question_id: str
    question: str
    answers: tuple[str, ...]
    ability: str
    prompt: str
    prompt_tokens: int
    seconds: float
    samples: tuple[SampleRecord, ...]


def question_record(sampled: SampledQuestion, env: ToolEnv, settings: RolloutSettings) -> QuestionRecord:
    """Reads the tree of a question that was sampled without forks in `env` or an equal one."""
    tree = episode_to_tree(sampled.episode)
    question = env.task.question(sampled.number, tuple(env.tools))
    return QuestionRecord(
        number=sampled.number,
        question_id=tree.question_id,
        question=question.messages[-1][1],
        answers=question.answers,
        ability=question.ability,
        prompt=env.tokenizer.decode(tree.prompt),
        prompt_tokens=len(tree.prompt),
        seconds=sampled.seconds,
        samples=tuple(_sample(i, t, sampled.number, question, env, settings) for i, t in enumerate(tree.trajectories)),
    )


def _sample(
    index: int, trajectory: Trajectory, number: int, question: Question, env: ToolEnv, settings: RolloutSettings
) -> SampleRecord:
    turns = tuple(_turn(turn, env) for turn in trajectory.turns)
    answer = _answer(turns, env)
    exact_match, f1 = _text_scores(answer if trajectory.format_valid else None, trajectory.accuracy, question)
    calls = [turn.tool_call for turn in trajectory.turns if turn.tool_call is not None]
    greedy = settings.temperature == 0
    return SampleRecord(
        sample=index,
        seed=None if greedy else request_seed(settings.seed, number, trajectory.agent_id, 0),
        turns=turns,
        answer=answer,
        reward=trajectory.reward,
        accuracy=trajectory.accuracy,
        correct=is_correct(trajectory.accuracy),
        exact_match=exact_match,
        f1=f1,
        format_valid=trajectory.format_valid,
        tool_calls=len(calls),
        tool_calls_failed=sum(call.status is not ToolStatus.OK for call in calls),
        response_tokens=sum(turn.num_tokens for turn in turns),
        stop_reason=str(trajectory.stop_reason),
        truncated=trajectory.stop_reason in TRUNCATED_STOP_REASONS,
        masked=trajectory.stop_reason in MASKED_STOP_REASONS,
    )


def _turn(turn: Turn, env: ToolEnv) -> TurnRecord:
    call = turn.tool_call
    return TurnRecord(
        text=turn_text(env.tokenizer, turn.token_ids, keep=env.protocol.end_tags),
        num_tokens=len(turn.token_ids),
        response=env.tokenizer.decode(turn.observation) if len(turn.observation) else None,
        tool=call and call.name,
        tool_status=call and str(call.status),
        tool_seconds=call and call.latency_s,
        entropies=tuple(round(float(entropy), 6) for entropy in turn.entropies) or None,
    )


def _answer(turns: tuple[TurnRecord, ...], env: ToolEnv) -> str | None:
    parsed = env.protocol.parse(turns[-1].text) if turns else None
    return parsed.text if isinstance(parsed, Answer) else None


def _text_scores(answer: str | None, accuracy: float, question: Question) -> tuple[float, float | None]:
    """(exact match, token F1) of an answer in the right format; 0 without an answer."""
    if question.ability != QA:
        return float(accuracy >= 1.0), None
    if answer is None:
        return 0.0, 0.0
    return exact_match(answer, question.answers), max(token_f1(answer, alias) for alias in question.answers)
