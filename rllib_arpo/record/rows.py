"""From a recorded question to the rows of the record, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rllib_arpo.core.tree import (
    ForkDecision,
    QuestionTree,
    StopReason,
    ToolCall,
    ToolStatus,
    Trajectory,
    Turn,
    TurnTimes,
    fork_path,
)
from rllib_arpo.record.question import (
    BenchmarkAnswer,
    PlacedTurn,
    QuestionFacts,
    RecordedQuestion,
    TreeAdvantages,
    TurnAdvantages,
)
from rllib_arpo.record.schema import ADVANTAGES, ANSWER
from rllib_arpo.record.texts import TurnText

Row = Mapping[str, Any]
Value = TypeVar("Value")

#: Columns of the record -> attributes of the values that have them. Where the first one is null, there is no value.
_FACTS = {"purpose": "purpose", "iteration": "iteration", "number": "number", "question_seconds": "seconds"}
_TRAJECTORY = {
    "agent_id": "agent_id", "parent": "parent", "inherited_turns": "num_inherited_turns", "topped_up": "topped_up",
    "stop_reason": "stop_reason", "accuracy": "accuracy", "format_valid": "format_valid",
}  # fmt: skip
_TURN = {
    "token_ids": "token_ids", "log_probs": "log_probs", "entropies": "entropies", "weight_versions": "weight_versions",
    "turn_reward": "reward", "new_context": "new_context",
}  # fmt: skip
_TEXT = {name: name for name in ("text", "token_ends", "tool_output")}
_TIMES = {"started_s": "started", "generated_s": "generated", "answered_s": "answered"}
_CALL = {"tool": "name", "tool_input": "argument", "tool_status": "status", "tool_seconds": "latency_s"}
_DECISION = {name: name for name in ("level", "delta", "probability", "eligible", "budget", "children")}
_ADVANTAGES = {column.name: column.name for column in ADVANTAGES}
_ANSWER = {column.name: column.name for column in ANSWER}


def question_rows(question: RecordedQuestion) -> list[Row]:
    """The rows of a question, trajectory by trajectory; one without a turn of its own has one row.

    A column that a row does not have is null.
    """
    tree, rows = question.tree, []
    of_question = _columns(_FACTS, question.facts) | {
        "question_id": tree.question_id,
        "trained": question.advantages is not None,
        "prompt": question.prompt_text,
        "prompt_tokens": len(tree.prompt),
    }
    for trajectory in tree.trajectories:
        shared = {
            **of_question,
            **_columns(_TRAJECTORY, trajectory),
            "counts": trajectory.counts,
            "reward": tree.return_of(trajectory.agent_id),
            "advantage": question.advantage(trajectory),
            **_columns(_ANSWER, question.answers.get(trajectory.agent_id)),
        }
        rows += [shared | own for own in map(_turn_row, question.turns_of(trajectory))] or [shared]
    return [rows[0] | {"prompt_ids": tree.prompt}, *rows[1:]]


def _turn_row(placed: PlacedTurn) -> dict[str, Any]:
    turn = placed.turn
    return {
        "turn": placed.own,
        "depth": placed.depth,
        **_columns(_TURN, turn),
        **_columns(_TEXT, placed.text),
        **_columns(_TIMES, turn.times),
        **_columns(_CALL, turn.tool_call),
        "tool_output_tokens": len(turn.observation),
        "tool_output_ids": turn.observation if len(turn.observation) else None,
        "after_tool": placed.after_tool,
        **_columns(_DECISION, turn.decision),
        **_columns(_ADVANTAGES, placed.advantages),
    }


def _columns(attributes: Mapping[str, str], value: object) -> dict[str, Any]:
    """The columns that are attributes of a value; none if there is no value."""
    return {} if value is None else {column: getattr(value, attribute) for column, attribute in attributes.items()}


def recorded_question(rows: Sequence[Row], settings: Mapping[str, Any]) -> RecordedQuestion:
    """The question of these rows, its trajectories in logical order: the inverse of `question_rows`.

    Raises:
        ValueError: a fork's parent does not precede it, or does not have the turns above it.
    """
    by_agent: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: fork_path(row["agent_id"])):
        by_agent.setdefault(row["agent_id"], []).append(row)
    with_turn = {
        (agent_id, i): row
        for agent_id, own in by_agent.items()
        for i, row in enumerate(row for row in own if row["turn"] is not None)
    }
    first = rows[0]
    prompt = next((row["prompt_ids"] for row in rows if row["prompt_ids"] is not None), ())
    tree = QuestionTree(first["question_id"], np.array(prompt, np.int32), tuple(map(_trajectory, by_agent.values())))
    _check_forks(tree)
    advantages = None
    if first["trained"]:
        leaves = {agent_id: own[0]["advantage"] for agent_id, own in by_agent.items()}
        advantages = TreeAdvantages(
            {agent_id: advantage for agent_id, advantage in leaves.items() if advantage is not None},
            {key: _value(TurnAdvantages, _ADVANTAGES, row) or TurnAdvantages() for key, row in with_turn.items()},
        )
    answers = {agent_id: _value(BenchmarkAnswer, _ANSWER, own[0]) for agent_id, own in by_agent.items()}
    return RecordedQuestion(
        facts=QuestionFacts(**{attribute: first[column] for column, attribute in _FACTS.items()}),
        tree=tree,
        settings=settings,
        prompt_text=first["prompt"],
        texts={key: TurnText(**{name: row[name] for name in _TEXT}) for key, row in with_turn.items()},
        advantages=advantages,
        answers={agent_id: answer for agent_id, answer in answers.items() if answer is not None},
    )


def _value(kind: type[Value], attributes: Mapping[str, str], row: Row) -> Value | None:
    """The value whose attributes these columns are."""
    if row[next(iter(attributes))] is None:
        return None
    return kind(**{attribute: row[column] for column, attribute in attributes.items()})


def _trajectory(rows: Sequence[Row]) -> Trajectory:
    own = {attribute: rows[0][column] for column, attribute in _TRAJECTORY.items()}
    turns = tuple(_turn(row) for row in rows if row["turn"] is not None)
    return Trajectory(**own | {"stop_reason": StopReason(own["stop_reason"])}, turns=turns)


def _turn(row: Row) -> Turn:
    call = _value(ToolCall, _CALL, row)
    return Turn(
        token_ids=np.array(row["token_ids"], np.int32),
        log_probs=np.array(row["log_probs"], np.float32),
        entropies=np.array(row["entropies"], np.float32),
        observation=np.array(row["tool_output_ids"] or (), np.int32),
        weight_versions=np.array(row["weight_versions"], np.int32),
        tool_call=call and replace(call, status=ToolStatus(call.status)),
        decision=_value(ForkDecision, _DECISION, row),
        times=_value(TurnTimes, _TIMES, row),
        reward=row["turn_reward"],
        new_context=row["new_context"],
    )


def _check_forks(tree: QuestionTree) -> None:
    depths: dict[str, int] = {}
    for trajectory in tree.trajectories:
        parent, inherited = trajectory.parent, trajectory.num_inherited_turns
        if not 0 <= inherited <= (0 if parent is None else depths.get(parent, -1)):
            raise ValueError(
                f"The question {tree.question_id!r}: the trajectory {trajectory.agent_id!r} cannot be a fork of"
                f" {parent!r} after turn {inherited}."
            )
        depths[trajectory.agent_id] = trajectory.num_path_turns
