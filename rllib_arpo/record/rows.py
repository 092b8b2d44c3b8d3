"""From a question's tree to the rows of the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.core.advantages import NodeAttribution
from rllib_arpo.core.tree import ForkDecision, QuestionTree, ToolCall, Trajectory, TreeLayout, TurnTimes
from rllib_arpo.record.schema import ADVANTAGES, ANSWER, CALL, NODE, TURN
from rllib_arpo.record.tokens import plain_text, token_text

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QuestionFacts:
    """The facts of a question beside its tree (`schema.QUESTION`)."""

    purpose: str
    iteration: int
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TreeAdvantages:
    """The advantages of a tree that was trained.

    Attributes:
        layout: N nodes and L leaves.
        leaves: [L], A of each leaf.
        soft, hard: [N] each.
    """

    layout: TreeLayout
    leaves: np.ndarray
    soft: NodeAttribution
    hard: NodeAttribution


def question_rows(
    tree: QuestionTree,
    facts: QuestionFacts,
    tokenizer: Any,
    advantages: TreeAdvantages | None = None,
    answers: Mapping[str, Row] | None = None,
) -> list[Row]:
    """The rows of a question, trajectory by trajectory; one without a turn of its own has one row.

    Args:
        tokenizer: decodes; nothing is tokenized. None: the model has none.
        advantages: None if the question was not trained.
        answers: agent id -> the columns `schema.ANSWER`, of the questions of a benchmark.
    """
    of_question = {
        "purpose": facts.purpose,
        "iteration": facts.iteration,
        "number": facts.number,
        "question_id": tree.question_id,
        "question_seconds": facts.seconds,
        "trained": advantages is not None,
        "prompt": plain_text(tokenizer, tree.prompt),
        "prompt_tokens": len(tree.prompt),
    }
    by_leaf, by_turn = _by_place(advantages)
    rows = []
    for i, (trajectory, reward) in enumerate(zip(tree.trajectories, tree.returns().tolist(), strict=True)):
        answer = _NO_ANSWER if answers is None else answers[trajectory.agent_id]
        shared = of_question | _trajectory(trajectory, reward) | {"advantage": by_leaf.get(i)} | answer
        own = [turn | by_turn.get((i, turn["turn"]), _ABOVE_NO_LEAF) for turn in _turns(tree, trajectory, tokenizer)]
        rows += [shared | turn for turn in own or [_NO_TURN]]
    if advantages is None:
        rows = [row | _NO_ADVANTAGES for row in rows]
    return [row | {"prompt_ids": None if i else tree.prompt} for i, row in enumerate(rows)]


_NO_ADVANTAGES: Row = {column.name: None for column in ADVANTAGES}
_NO_ANSWER: Row = {column.name: None for column in ANSWER}
_NO_TURN: Row = {column.name: None for column in (*TURN, *CALL, *NODE, *ADVANTAGES)}
#: Of a trained question: only masked trajectories pass the turn.
_ABOVE_NO_LEAF: Row = {
    "leaves": 0, "weight": 0.0, "soft_positive": 0.0, "soft_negative": 0.0, "hard_advantage": None,
}  # fmt: skip


def _by_place(advantages: TreeAdvantages | None) -> tuple[dict[int, float], dict[tuple[int, int], Row]]:
    """Trajectory -> its advantage; (trajectory, its own turn) -> the columns of `schema.ADVANTAGES`."""
    if advantages is None:
        return {}, {}
    layout, soft, hard = advantages.layout, advantages.soft, advantages.hard
    by_turn = {
        (node.trajectory, node.turn): {
            "leaves": node.leaf_end - node.leaf_begin,
            "weight": float(soft.weight[n]),
            "soft_positive": float(soft.a_pos[n]),
            "soft_negative": float(soft.a_neg[n]),
            # One of both is 0, the other W mean(A).
            "hard_advantage": float((hard.a_pos[n] + hard.a_neg[n]) / hard.weight[n]),
        }
        for n, node in enumerate(layout.nodes)
    }
    return {leaf: float(a) for leaf, a in zip(layout.leaves, advantages.leaves, strict=True)}, by_turn


def _trajectory(trajectory: Trajectory, reward: float) -> Row:
    return {
        "agent_id": trajectory.agent_id,
        "parent": trajectory.parent,
        "inherited_turns": trajectory.num_inherited_turns,
        "topped_up": trajectory.topped_up,
        "stop_reason": str(trajectory.stop_reason),
        "counts": trajectory.counts,
        "reward": reward,
        "accuracy": trajectory.accuracy,
        "format_valid": trajectory.format_valid,
    }


def _turns(tree: QuestionTree, trajectory: Trajectory, tokenizer: Any) -> Iterator[Row]:
    above = tree.path(trajectory.agent_id)[: trajectory.num_inherited_turns]
    before = above[-1] if above else None
    for own, turn in enumerate(trajectory.turns):
        text, ends = token_text(tokenizer, turn.token_ids)
        yield {
            "turn": own,
            "depth": trajectory.num_inherited_turns + own,
            "text": text,
            "token_ids": turn.token_ids,
            "token_ends": ends,
            "log_probs": turn.log_probs,
            "entropies": turn.entropies,
            "weight_versions": turn.weight_versions,
            "turn_reward": turn.reward,
            **_times(turn.times),
            **_call(turn.tool_call),
            "tool_output": plain_text(tokenizer, turn.observation) if len(turn.observation) else None,
            "tool_output_tokens": len(turn.observation),
            "tool_output_ids": turn.observation if len(turn.observation) else None,
            "after_tool": None if before is None else before.tool,
            **_decision(turn.decision),
        }
        before = turn


def _times(times: TurnTimes | None) -> Row:
    if times is None:
        return dict.fromkeys(("started_s", "generated_s", "answered_s"))
    return {"started_s": times.started, "generated_s": times.generated, "answered_s": times.answered}


def _call(call: ToolCall | None) -> Row:
    if call is None:
        return dict.fromkeys(("tool", "tool_input", "tool_status", "tool_seconds"))
    return {
        "tool": call.name,
        "tool_input": call.argument,
        "tool_status": str(call.status),
        "tool_seconds": call.latency_s,
    }


def _decision(decision: ForkDecision | None) -> Row:
    names = ("level", "delta", "probability", "eligible", "budget", "children")
    return {name: getattr(decision, name, None) for name in names}
