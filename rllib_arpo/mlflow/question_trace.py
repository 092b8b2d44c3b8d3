"""A recorded question as a trace of MLflow: the question, its trajectories and forks, turns, tool calls.

MLflow's own tracer is not used. It exports in threads that report an error to the log and drop the trace, and it knows
one store a process.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow.entities import AssessmentSource, Feedback, Span, TraceInfo, TraceLocation, TraceState
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey

from rllib_arpo.core.tree import OUTAGE_STOP_REASONS, ToolStatus
from rllib_arpo.record.read import Question, Row, Trajectory
from rllib_arpo.record.schema import ADVANTAGES
from rllib_arpo.show import words
from rllib_arpo.tracking.transcripts import last_lines

#: Metadata of a trace: the file of the record from which it was made, and when that file was written (ns).
FILE, WRITTEN = "record_file", "record_written"
#: MLflow's types of spans.
QUESTION, TRAJECTORY, TURN, TOOL = "CHAIN", "AGENT", "LLM", "TOOL"
#: Columns of a trajectory that its span shows.
_OF_TRAJECTORY = ("reward", "accuracy", "format_valid", "stop_reason", "counts", "topped_up", "advantage")
#: Digits of an entropy in nats.
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class QuestionTrace:
    """Makes the trace of a question.

    Its ids are functions of the run, the file and the question, so that the same question gets the same ones.

    Attributes:
        run_id: of MLflow.
        file: the name of the record's file.
        written: when it was written, ns since the epoch. The record has the times within a question, but no time of
            day: the question is taken to have ended when its file was written.
    """

    question: Question
    run_id: str
    file: str
    written: int

    @property
    def id(self) -> str:
        return f"tr-{self._number:032x}"

    def info(self, experiment: str) -> TraceInfo:
        row = self.question.row
        return TraceInfo(
            trace_id=self.id,
            trace_location=TraceLocation.from_experiment_id(experiment),
            request_time=self._begin_ns // 1_000_000,
            state=TraceState.ERROR if self._outages() else TraceState.OK,
            # What MLflow's list shows, beside the rewards.
            request_preview=f"{row['question_id']}: {last_lines(row['prompt'] or '')}",
            response_preview=json.dumps(self._outcomes()),
            execution_duration=round(self._end_s * 1000),
            trace_metadata={TraceMetadataKey.SOURCE_RUN: self.run_id, FILE: self.file, WRITTEN: str(self.written)},
            tags={TraceTagKey.TRACE_NAME: row["question_id"], **trace_tags(self.question)},
            assessments=[self._feedback(name, value) for name, value in trace_scores(self.question).items()],
        )

    def spans(self) -> Iterator[Span]:
        """Each follows the one above it; a fork is below the trajectory that it left."""
        row = self.question.row
        yield self._span(
            "",
            parent=None,
            name=row["question_id"],
            kind=QUESTION,
            seconds=(0.0, self._end_s),
            inputs=row["prompt"],
            outputs=self._outcomes(),
            attributes={name: row[name] for name in ("purpose", "iteration", "number", "trained")},
            error=", ".join(self._outages()),
        )
        for trajectory in self.question.trajectories:
            yield from self._trajectory(trajectory)

    def _trajectory(self, trajectory: Trajectory) -> Iterator[Span]:
        """The span of a trajectory, and those of its own turns."""
        row, begin_s, decision = trajectory.row, 0.0, {}
        if row["parent"] is not None:
            parent = self.question.trajectory(row["parent"])
            # The decision stands at the parent's turn that follows the node.
            after = next((turn for turn in parent.turns if turn["depth"] == row["inherited_turns"]), None)
            if after is not None:
                begin_s, decision = after["started_s"] or 0.0, self._decision(after, parent)
        times = [_times(turn) for turn in trajectory.turns]
        begin_s = times[0][0] if times else begin_s
        yield self._span(
            trajectory.agent_id,
            parent=row["parent"] or "",
            name=trajectory_name(trajectory),
            kind=TRAJECTORY,
            seconds=(begin_s, max([begin_s, *(end_s for _, _, end_s in times)])),
            outputs=trajectory.turns[-1]["text"] if trajectory.turns else None,
            attributes=decision | {name: row[name] for name in _OF_TRAJECTORY},
            error=row["stop_reason"] if row["stop_reason"] in OUTAGE_STOP_REASONS else "",
        )
        for turn in trajectory.turns:
            yield from self._turn(turn, trajectory)

    def _turn(self, turn: Row, trajectory: Trajectory) -> Iterator[Span]:
        """The span of a turn, and that of its tool call."""
        key = f"{trajectory.agent_id}/{turn['turn']}"
        begin_s, generated_s, end_s = _times(turn)
        tokens = {
            "tokens": len(turn["token_ids"]),
            "entropies": [round(entropy, _DIGITS) for entropy in turn["entropies"]],
            "weight_versions": sorted(set(turn["weight_versions"])),
            "after_tool": turn["after_tool"],
        }
        advantages = {column.name: turn[column.name] for column in ADVANTAGES}
        yield self._span(
            key,
            parent=trajectory.agent_id,
            name=f"turn {turn['depth'] + 1}",
            kind=TURN,
            seconds=(begin_s, end_s),
            outputs=list(turn["token_ids"]) if turn["text"] is None else turn["text"],
            attributes=tokens | self._decision(turn, trajectory) | advantages,
        )
        if turn["tool"] is not None:
            yield self._span(
                f"{key}/tool",
                parent=key,
                name=turn["tool"] or "a tool",
                kind=TOOL,
                seconds=(generated_s, end_s),
                inputs=turn["tool_input"],
                outputs=turn["tool_output"],
                attributes={
                    "seconds": turn["tool_seconds"],
                    "tokens": turn["tool_output_tokens"],
                    "new_context": words.new_context(turn) or None,
                },
                error=turn["tool_status"] if turn["tool_status"] != ToolStatus.OK else "",
            )

    def _span(
        self,
        key: str,
        *,
        parent: str | None,
        name: str,
        kind: str,
        seconds: tuple[float, float],
        inputs: Any = None,
        outputs: Any,
        attributes: Mapping[str, Any],
        error: str = "",
    ) -> Span:
        """A span.

        Args:
            key: names it within the trace: "" (the root), "0.0" (a trajectory), "0.0/1" (a turn), "0.0/1/tool".
            parent: the key of the span above it; None: it is the root.
            seconds: begin and end, since the question began.
            inputs, outputs, attributes: what JSON can say; what is None is left out.
            error: why it failed; empty: it did not.
        """
        of_mlflow = {
            SpanAttributeKey.REQUEST_ID: self.id,
            SpanAttributeKey.SPAN_TYPE: kind,
            SpanAttributeKey.INPUTS: inputs,
            SpanAttributeKey.OUTPUTS: outputs,
        }
        begin_ns, end_ns = (self._begin_ns + round(second * 1e9) for second in seconds)
        return Span.from_dict(
            {
                "trace_id": _base64(self._number, 16),
                "span_id": self._span_id(key),
                "parent_span_id": None if parent is None else self._span_id(parent),
                "name": name,
                "start_time_unix_nano": begin_ns,
                "end_time_unix_nano": end_ns,
                "status": {"code": "STATUS_CODE_ERROR" if error else "STATUS_CODE_OK", "message": error},
                "attributes": {key: json.dumps(value) for key, value in _known({**of_mlflow, **attributes}).items()},
            }
        )

    def _decision(self, turn: Row, trajectory: Trajectory) -> dict[str, Any]:
        """The decision at the node before a turn; empty if the node was not examined."""
        if turn["delta"] is None:
            return {}
        return {
            "dH": turn["delta"],
            "P": turn["probability"],
            **{name: turn[name] for name in ("level", "eligible", "budget", "children")},
            "decision": words.decision(turn, trajectory, self.question),
        }

    def _outcomes(self) -> dict[str, dict[str, Any]]:
        return {
            trajectory.agent_id: _known(
                {
                    "reward": trajectory.row["reward"] if trajectory.row["counts"] else None,
                    "stop_reason": trajectory.row["stop_reason"],
                }
            )
            for trajectory in self.question.trajectories
        }

    def _outages(self) -> list[str]:
        return [reason for reason in self.question.stop_reasons() if reason in OUTAGE_STOP_REASONS]

    def _feedback(self, name: str, value: float) -> Feedback:
        """A number by which MLflow can search: `feedback.reward > 0.5`."""
        source = AssessmentSource(source_type="CODE", source_id="rllib_arpo")
        feedback = Feedback(name=name, value=value, source=source, trace_id=self.id)
        feedback.assessment_id = f"a-{_digest(16, self.id, name):032x}"
        return feedback

    def _span_id(self, key: str) -> str:
        return _base64(_digest(8, self.id, key), 8)

    @property
    def _number(self) -> int:
        return _digest(16, self.run_id, self.file, str(self.question.row["number"]))

    @property
    def _end_s(self) -> float:
        return max([self.question.row["question_seconds"], *(_times(turn)[2] for turn in self.question.turns())])

    @property
    def _begin_ns(self) -> int:
        return self.written - round(self._end_s * 1e9)


def trace_tags(question: Question) -> dict[str, str]:
    """Search tags of a trace, beside its rewards (`trace_scores`); empty ones are left out."""
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


def _times(turn: Row) -> tuple[float, float, float]:
    """The times at which a turn began, had its text, and had its tool's answer, in seconds since the question began.

    A time that was not measured is the one before it.
    """
    begin_s = turn["started_s"] or 0.0
    generated_s = begin_s if turn["generated_s"] is None else turn["generated_s"]
    return begin_s, generated_s, generated_s if turn["answered_s"] is None else turn["answered_s"]


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _digest(size: int, *names: str) -> int:
    return int.from_bytes(hashlib.blake2b("\n".join(names).encode(), digest_size=size).digest(), "big")


def _base64(number: int, size: int) -> str:
    return base64.b64encode(number.to_bytes(size, "big")).decode()
