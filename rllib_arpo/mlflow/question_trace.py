"""Turns a recorded question into an MLflow trace, with spans for its trajectories and forks, turns and tool calls.

We do not use MLflow's tracer: it exports in threads that log an error and drop the trace, and it supports one store per
process.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow.entities import AssessmentSource, Feedback, Span, TraceInfo, TraceLocation, TraceState
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey

from rllib_arpo.core.figures import stop_reasons, tool_calls, tool_names
from rllib_arpo.core.tree import OUTAGE_STOP_REASONS, StopReason, ToolStatus, Trajectory, Turn
from rllib_arpo.record.question import PlacedTurn, RecordedQuestion
from rllib_arpo.show import words
from rllib_arpo.tracking.transcripts import last_lines

#: Metadata of a trace: the name of the record's file, and when that file was written (ns).
FILE, WRITTEN = "record_file", "record_written"
#: MLflow's types of spans.
QUESTION, TRAJECTORY, TURN, TOOL = "CHAIN", "AGENT", "LLM", "TOOL"
#: Attributes of a trajectory in its span, besides reward and advantage.
_OF_TRAJECTORY = ("accuracy", "format_valid", "stop_reason", "counts", "topped_up")
#: Digits of an entropy in nats.
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class QuestionTrace:
    """Makes the trace of a question.

    Run, file and question determine its ids, so logging a question again gives the same ids.

    Attributes:
        run_id: the MLflow run.
        file: the name of the record's file.
        written: when the file was written, ns since the epoch. We take this as the end of the question, since the
            record has only times within a question.
    """

    question: RecordedQuestion
    run_id: str
    file: str
    written: int

    @property
    def id(self) -> str:
        return f"tr-{self._number:032x}"

    def info(self, experiment: str) -> TraceInfo:
        question_id = self.question.tree.question_id
        return TraceInfo(
            trace_id=self.id,
            trace_location=TraceLocation.from_experiment_id(experiment),
            request_time=self._begin_ns // 1_000_000,
            state=TraceState.ERROR if self._outages() else TraceState.OK,
            # MLflow's list shows these previews beside the rewards.
            request_preview=f"{question_id}: {last_lines(self.question.prompt_text or '')}",
            response_preview=json.dumps(self._endings()),
            execution_duration=round(self._end_s * 1000),
            trace_metadata={TraceMetadataKey.SOURCE_RUN: self.run_id, FILE: self.file, WRITTEN: str(self.written)},
            tags={TraceTagKey.TRACE_NAME: question_id, **trace_tags(self.question)},
            assessments=[self._feedback(name, value) for name, value in trace_scores(self.question).items()],
        )

    def spans(self) -> Iterator[Span]:
        """All spans, each after its parent. A fork's parent is the trajectory from which it was forked."""
        facts = self.question.facts
        yield self._span(
            "",
            parent=None,
            name=self.question.tree.question_id,
            kind=QUESTION,
            times=(0.0, self._end_s),
            inputs=self.question.prompt_text,
            outputs=self._endings(),
            error=", ".join(self._outages()),
            purpose=facts.purpose,
            iteration=facts.iteration,
            number=facts.number,
            trained=self.question.advantages is not None,
        )
        for trajectory in self.question.tree.trajectories:
            yield from self._trajectory(trajectory)

    def _trajectory(self, trajectory: Trajectory) -> Iterator[Span]:
        """The span of a trajectory, and the spans of its own turns."""
        question, turns, decision, begin_s = self.question, self.question.turns_of(trajectory), {}, 0.0
        if trajectory.parent is not None:
            # The parent's turn after the node has the decision.
            parent = question.tree.by_id()[trajectory.parent]
            after = [turn for turn in question.turns_of(parent) if turn.depth == trajectory.num_inherited_turns]
            if after:
                decision, begin_s = _decision(after[0]), _times(after[0].turn)[0]
        times = [_times(turn) for turn in trajectory.turns] or [(begin_s, begin_s, begin_s)]
        yield self._span(
            trajectory.agent_id,
            parent=trajectory.parent or "",
            name=f"{trajectory.agent_id}, {words.origin(trajectory)}",
            kind=TRAJECTORY,
            times=(times[0][0], max(end_s for _, _, end_s in times)),
            outputs=turns[-1].text.text if turns else None,
            error=trajectory.stop_reason if trajectory.stop_reason in OUTAGE_STOP_REASONS else "",
            **decision,
            reward=question.tree.return_of(trajectory.agent_id),
            **{name: getattr(trajectory, name) for name in _OF_TRAJECTORY},
            advantage=question.advantage(trajectory),
        )
        for turn in turns:
            yield from self._turn(turn)

    def _turn(self, placed: PlacedTurn) -> Iterator[Span]:
        """The span of a turn, and the span of its tool call."""
        turn, text, call = placed.turn, placed.text, placed.turn.tool_call
        key = f"{placed.trajectory.agent_id}/{placed.own}"
        begin_s, generated_s, end_s = _times(turn)
        yield self._span(
            key,
            parent=placed.trajectory.agent_id,
            name=f"turn {placed.depth + 1}",
            kind=TURN,
            times=(begin_s, end_s),
            outputs=turn.token_ids.tolist() if text.text is None else text.text,
            tokens=len(turn.token_ids),
            entropies=[round(entropy, _DIGITS) for entropy in turn.entropies.tolist()],
            weight_versions=sorted(set(turn.weight_versions.tolist())),
            after_tool=placed.after_tool,
            **_decision(placed),
            advantages=words.advantages(placed) or None,
        )
        if call is not None:
            yield self._span(
                f"{key}/tool",
                parent=key,
                name=call.name or "a tool",
                kind=TOOL,
                times=(generated_s, end_s),
                inputs=call.argument,
                outputs=text.tool_output,
                error=call.status if call.status != ToolStatus.OK else "",
                seconds=call.latency_s,
                tokens=len(turn.observation),
                new_context=words.new_context(placed) or None,
            )

    def _span(
        self,
        key: str,
        *,
        parent: str | None,
        name: str,
        kind: str,
        times: tuple[float, float],
        inputs: Any = None,
        outputs: Any,
        error: str = "",
        **attributes: Any,
    ) -> Span:
        """Makes a span.

        Args:
            key: its name within the trace: "" (the root), "0.0" (a trajectory), "0.0/1" (a turn), "0.0/1/tool".
            parent: its parent's key; None for the root.
            times: begin and end, in seconds since the question began.
            inputs, outputs, attributes: values for JSON; None values are left out.
            error: why it failed; empty if it did not.
        """
        of_mlflow = {
            SpanAttributeKey.REQUEST_ID: self.id,
            SpanAttributeKey.SPAN_TYPE: kind,
            SpanAttributeKey.INPUTS: inputs,
            SpanAttributeKey.OUTPUTS: outputs,
        }
        begin_ns, end_ns = (self._begin_ns + round(second * 1e9) for second in times)
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

    def _endings(self) -> dict[str, str]:
        return {t.agent_id: words.ending(self.question, t) for t in self.question.tree.trajectories}

    def _outages(self) -> list[StopReason]:
        return [reason for reason in stop_reasons(self.question.tree) if reason in OUTAGE_STOP_REASONS]

    def _feedback(self, name: str, value: float) -> Feedback:
        """A number that MLflow's search can compare: `feedback.reward > 0.5`."""
        source = AssessmentSource(source_type="CODE", source_id="rllib_arpo")
        feedback = Feedback(name=name, value=value, source=source, trace_id=self.id)
        feedback.assessment_id = f"a-{_digest(16, self.id, name):032x}"
        return feedback

    def _span_id(self, key: str) -> str:
        return _base64(_digest(8, self.id, key), 8)

    @property
    def _number(self) -> int:
        return _digest(16, self.run_id, self.file, str(self.question.facts.number))

    @property
    def _end_s(self) -> float:
        return max([self.question.facts.seconds, *(_times(turn)[2] for turn in self.question.tree.turns())])

    @property
    def _begin_ns(self) -> int:
        return self.written - round(self._end_s * 1e9)


def trace_tags(question: RecordedQuestion) -> dict[str, str]:
    """Tags for searching traces, without empty ones; `trace_scores` has the rewards."""
    tree, facts = question.tree, question.facts
    failed = {call.name for call in tool_calls(tree) if call.name and call.status != ToolStatus.OK}
    tags = {
        "purpose": facts.purpose,
        "iteration": str(facts.iteration),
        "question_id": tree.question_id,
        "forks": str(len(tree.forks())),
        "stop_reasons": ",".join(stop_reasons(tree)),
        "tools": ",".join(tool_names(tree)),
        "failed_tools": ",".join(sorted(failed)),
    }
    return {name: value for name, value in tags.items() if value}


def trace_scores(question: RecordedQuestion) -> dict[str, float]:
    """Mean reward, best reward and mean accuracy of the trajectories that count; empty if none does."""
    counting = [trajectory for trajectory in question.tree.trajectories if trajectory.counts]
    if not counting:
        return {}
    rewards = [question.tree.return_of(trajectory.agent_id) for trajectory in counting]
    return {
        "reward": sum(rewards) / len(rewards),
        "best_reward": max(rewards),
        "accuracy": sum(trajectory.accuracy for trajectory in counting) / len(counting),
    }


def _decision(placed: PlacedTurn) -> dict[str, Any]:
    """The fork decision at the node before a turn; empty if the node was not examined."""
    made = placed.turn.decision
    return {} if made is None else {"dH": made.delta, "P": made.probability, "decision": words.decision(placed)}


def _times(turn: Turn) -> tuple[float, float, float]:
    """When a turn began, had its text, and had its tool's answer, in seconds since the question began.

    A time that was not measured equals the previous one.
    """
    times = turn.times
    if times is None:
        return 0.0, 0.0, 0.0
    return times.started, times.generated, times.generated if times.answered is None else times.answered


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _digest(size: int, *names: str) -> int:
    return int.from_bytes(hashlib.blake2b("\n".join(names).encode(), digest_size=size).digest(), "big")


def _base64(number: int, size: int) -> str:
    return base64.b64encode(number.to_bytes(size, "big")).decode()
