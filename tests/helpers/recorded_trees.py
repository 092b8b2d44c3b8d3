"""The tree of a recorded question, as it was sampled: what shows that the record loses nothing."""

from __future__ import annotations

import numpy as np

from rllib_arpo.core import tree as core
from rllib_arpo.record.read import Question, Row, Trajectory


def recorded_tree(question: Question) -> core.QuestionTree:
    return core.QuestionTree(
        question_id=question.row["question_id"],
        prompt=np.array(question.row["prompt_ids"], np.int32),
        trajectories=tuple(_sampled(trajectory) for trajectory in question.trajectories),
    )


def _sampled(trajectory: Trajectory) -> core.Trajectory:
    row = trajectory.row
    same = ("agent_id", "accuracy", "format_valid", "parent", "topped_up")
    return core.Trajectory(
        **{name: row[name] for name in same},
        turns=tuple(_sampled_turn(turn) for turn in trajectory.turns),
        stop_reason=core.StopReason(row["stop_reason"]),
        num_inherited_turns=row["inherited_turns"],
    )


def _sampled_turn(row: Row) -> core.Turn:
    call = decision = times = None
    if row["tool"] is not None:
        status = core.ToolStatus(row["tool_status"])
        call = core.ToolCall(row["tool"], status, row["tool_seconds"], row["tool_input"])
    if row["level"] is not None:
        names = ("level", "delta", "probability", "eligible", "children", "budget")
        decision = core.ForkDecision(**{name: row[name] for name in names})
    if row["started_s"] is not None:
        times = core.TurnTimes(row["started_s"], row["generated_s"], row["answered_s"])
    return core.Turn(
        token_ids=np.array(row["token_ids"], np.int32),
        log_probs=np.array(row["log_probs"], np.float32),
        entropies=np.array(row["entropies"], np.float32),
        observation=np.array(row["tool_output_ids"] or (), np.int32),
        weight_versions=np.array(row["weight_versions"], np.int32),
        tool_call=call,
        decision=decision,
        times=times,
        reward=row["turn_reward"],
        new_context=row["new_context"],
    )
