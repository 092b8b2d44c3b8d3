"""From a recorded question to the spans of its trace: the question, its trajectories and forks, turns, tool calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.core.tree import OUTAGE_STOP_REASONS, ToolStatus
from rllib_arpo.record.schema import ADVANTAGES
from rllib_arpo.show import words
from rllib_arpo.show.records import Question, Row, Trajectory

#: MLflow's types of spans.
QUESTION, TRAJECTORY, TURN, TOOL = "CHAIN", "AGENT", "LLM", "TOOL"
#: Key of the question's span, the root.
ROOT = ""
#: Columns of a trajectory that its span shows.
_OF_TRAJECTORY = ("reward", "accuracy", "format_valid", "stop_reason", "counts", "topped_up", "advantage")
#: Digits of an entropy in nats.
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span of a question's trace.

    Attributes:
        key: names it within the trace: `ROOT`, "0.0" (a trajectory), "0.0/1" (a turn), "0.0/1/tool".
        parent: the key of the span above it; None: it is the root.
        kind: `QUESTION`, `TRAJECTORY`, `TURN` or `TOOL`.
        begin_s, end_s: seconds since the question began.
        inputs, outputs, attributes: what JSON can say; attributes that are None are left out.
        error: why it failed; empty: it did not.
    """

    key: str
    parent: str | None
    name: str
    kind: str
    begin_s: float
    end_s: float
    inputs: Any = None
    outputs: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


def trace_spans(question: Question) -> list[TraceSpan]:
    """The spans of a question; each follows the one above it, and a fork is below the trajectory that it left."""
    below = [span for trajectory in question.trajectories for span in _trajectory(trajectory, question)]
    outages = [span.error for span in below if span.kind == TRAJECTORY and span.error]
    root = TraceSpan(
        ROOT,
        None,
        question.row["question_id"],
        QUESTION,
        0.0,
        max([question.row["question_seconds"], *(span.end_s for span in below)]),
        inputs=question.row["prompt"],
        outputs={trajectory.agent_id: _outcome(trajectory) for trajectory in question.trajectories},
        attributes=_known({name: question.row[name] for name in ("purpose", "iteration", "number", "trained")}),
        error=", ".join(sorted(set(outages))),
    )
    return [root, *below]


def trace_tags(question: Question) -> dict[str, str]:
    """What a trace is found by, beside its rewards (`trace_scores`); without what is empty."""
    row = question.row
    failed = {turn["tool"] for turn in question.turns() if turn["tool"] and turn["tool_status"] != ToolStatus.OK}
    tags = {
        "purpose": row["purpose"],
        "iteration": str(row["iteration"]),
        "question_id": row["question_id"],
        "forks": str(question.num_forks()),
        "stop_reasons": ",".join(question.stop_reasons()),
        "tools": ",".join(question.tools()),
        "failed_tools": ",".join(sorted(failed)),
    }
    return {name: value for name, value in tags.items() if value}


def trace_scores(question: Question) -> dict[str, float]:
    """Means and the best reward of the trajectories that count; empty if none does."""
    counting = [trajectory.row for trajectory in question.trajectories if trajectory.row["counts"]]
    if not counting:
        return {}
    rewards = [row["reward"] for row in counting]
    return {
        "reward": sum(rewards) / len(rewards),
        "best_reward": max(rewards),
        "accuracy": sum(row["accuracy"] for row in counting) / len(counting),
    }


def trajectory_name(trajectory: Trajectory) -> str:
    row = trajectory.row
    if row["parent"] is not None:
        return f"fork {row['agent_id']} after turn {row['inherited_turns']}"
    return f"{'top-up' if row['topped_up'] else 'trajectory'} {row['agent_id']}"


def _trajectory(trajectory: Trajectory, question: Question) -> Iterator[TraceSpan]:
    """The span of a trajectory, and those of its own turns."""
    row, key = trajectory.row, trajectory.agent_id
    turns = [span for turn in trajectory.turns for span in _turn(turn, trajectory, question)]
    begin_s, decision = 0.0, {}
    if row["parent"] is not None:
        parent = question.trajectory(row["parent"])
        # The decision stands at the parent's turn that follows the node.
        after = next((turn for turn in parent.turns if turn["depth"] == row["inherited_turns"]), None)
        if after is not None:
            begin_s, decision = after["started_s"] or 0.0, _decision(after, parent, question)
    if turns:
        begin_s = turns[0].begin_s
    yield TraceSpan(
        key,
        ROOT if row["parent"] is None else row["parent"],
        trajectory_name(trajectory),
        TRAJECTORY,
        begin_s,
        max([begin_s, *(span.end_s for span in turns)]),
        outputs=trajectory.turns[-1]["text"] if trajectory.turns else None,
        attributes=decision | _known({name: row[name] for name in _OF_TRAJECTORY}),
        error=row["stop_reason"] if row["stop_reason"] in OUTAGE_STOP_REASONS else "",
    )
    yield from turns


def _turn(turn: Row, trajectory: Trajectory, question: Question) -> Iterator[TraceSpan]:
    """The span of a turn, and that of its tool call."""
    key = f"{trajectory.agent_id}/{turn['turn']}"
    begin_s = turn["started_s"] or 0.0
    generated_s = begin_s if turn["generated_s"] is None else turn["generated_s"]
    end_s = generated_s if turn["answered_s"] is None else turn["answered_s"]
    tokens = {
        "tokens": len(turn["token_ids"]),
        "entropies": [round(entropy, _DIGITS) for entropy in turn["entropies"]],
        "weight_versions": sorted(set(turn["weight_versions"])),
        "after_tool": turn["after_tool"],
    }
    advantages = {column.name: turn[column.name] for column in ADVANTAGES}
    yield TraceSpan(
        key,
        trajectory.agent_id,
        f"turn {turn['depth'] + 1}",
        TURN,
        begin_s,
        end_s,
        outputs=list(turn["token_ids"]) if turn["text"] is None else turn["text"],
        attributes=_known(tokens) | _decision(turn, trajectory, question) | _known(advantages),
    )
    if turn["tool"] is not None:
        failed = turn["tool_status"] != ToolStatus.OK
        yield TraceSpan(
            f"{key}/tool",
            key,
            turn["tool"] or "a tool",
            TOOL,
            generated_s,
            end_s,
            inputs=turn["tool_input"],
            outputs=turn["tool_output"],
            attributes=_known({"seconds": turn["tool_seconds"], "tokens": turn["tool_output_tokens"]}),
            error=turn["tool_status"] if failed else "",
        )


def _outcome(trajectory: Trajectory) -> dict[str, Any]:
    row = trajectory.row
    return _known({"reward": row["reward"] if row["counts"] else None, "stop_reason": row["stop_reason"]})


def _decision(turn: Row, trajectory: Trajectory, question: Question) -> dict[str, Any]:
    """What was decided at the node before a turn; empty if the node was not examined."""
    if turn["delta"] is None:
        return {}
    named = {"dH": turn["delta"], "P": turn["probability"]}
    return _known(named | {name: turn[name] for name in ("level", "eligible", "budget", "children")}) | {
        "decision": words.decision(turn, trajectory, question)
    }


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
