"""Turns a recorded question into an MLflow trace, with spans for its trajectories and forks, turns and tool calls.

We do not use MLflow's tracer: it exports in threads that log an error and drop the trace, and it supports one store per
process.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import AssessmentSource, Feedback, Span, SpanType, TraceInfo, TraceLocation, TraceState
from mlflow.tracing.constant import TRACE_REQUEST_RESPONSE_PREVIEW_MAX_LENGTH_OSS as PREVIEW_CHARS
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey

from rllib_arpo.core.figures import stop_reasons
from rllib_arpo.core.metric import mean
from rllib_arpo.core.tree import OUTAGE_STOP_REASONS, ToolStatus, Trajectory, Turn
from rllib_arpo.record.question import PlacedTurn, RecordedQuestion
from rllib_arpo.show import words


@dataclass(frozen=True, slots=True)
class QuestionTrace:
    """Makes the trace of a question.

    Run, file and question determine its ids, so logging a question again gives the same ids.

    Attributes:
        run_id: the MLflow run.
        path: the file of the record. We take its time as the end of the question, since the record has only times
            within a question.
    """

    question: RecordedQuestion
    run_id: str
    path: Path

    def info(self, experiment: str) -> TraceInfo:
        tree, prompt = self.question.tree, self.question.prompt_text or ""
        return TraceInfo(
            trace_id=self._id,
            trace_location=TraceLocation.from_experiment_id(experiment),
            request_time=self._begin_ns // 1_000_000,
            state=TraceState.ERROR if OUTAGE_STOP_REASONS.intersection(stop_reasons(tree)) else TraceState.OK,
            # MLflow's list shows these previews beside the rewards. The end of the prompt has the question.
            request_preview="\n".join([f"{tree.question_id}:", *prompt.strip().splitlines()[-3:]])[:PREVIEW_CHARS],
            response_preview=json.dumps(self._endings())[:PREVIEW_CHARS],
            execution_duration=round(self._end_s * 1000),
            trace_metadata={TraceMetadataKey.SOURCE_RUN: self.run_id},
            tags={TraceTagKey.TRACE_NAME: tree.question_id, **trace_tags(self.question)},
            assessments=[self._feedback(name, value) for name, value in trace_scores(self.question).items()],
        )

    def spans(self) -> Iterator[Span]:
        """All spans, each after its parent. A fork's parent is the trajectory from which it was forked."""
        facts, tree = self.question.facts, self.question.tree
        yield self._span(
            "", None, tree.question_id, SpanType.CHAIN, (0.0, self._end_s), self.question.prompt_text, self._endings(),
            purpose=facts.purpose, iteration=facts.iteration, trained=self.question.advantages is not None,
        )  # fmt: skip
        for trajectory in tree.trajectories:
            yield from self._trajectory(trajectory)

    def _trajectory(self, trajectory: Trajectory) -> Iterator[Span]:
        """The span of a trajectory, and the spans of its own turns."""
        turns = self.question.turns_of(trajectory)
        times = [_times(placed.turn) for placed in turns] or [(0.0, 0.0, 0.0)]
        reason = trajectory.stop_reason
        yield self._span(
            trajectory.agent_id, trajectory.parent or "", f"{trajectory.agent_id}, {words.origin(trajectory)}",
            SpanType.AGENT, (times[0][0], max(end_s for _, _, end_s in times)),
            None, turns[-1].text.text if turns else None, reason if reason in OUTAGE_STOP_REASONS else "",
            accuracy=trajectory.accuracy, counts=trajectory.counts, stop_reason=reason,
            reward=self.question.tree.return_of(trajectory.agent_id), advantage=self.question.advantage(trajectory),
        )  # fmt: skip
        for placed in turns:
            yield from self._turn(placed)

    def _turn(self, placed: PlacedTurn) -> Iterator[Span]:
        """The span of a turn, with the fork decision before it, and the span of its tool call."""
        turn, text, call, made = placed.turn, placed.text, placed.turn.tool_call, placed.turn.decision
        key = f"{placed.trajectory.agent_id}/{placed.own}"
        begin_s, generated_s, end_s = _times(turn)
        yield self._span(
            key, placed.trajectory.agent_id, f"turn {placed.depth + 1}", SpanType.LLM, (begin_s, end_s),
            None, turn.token_ids.tolist() if text.text is None else text.text,
            tokens=len(turn.token_ids), after_tool=placed.after_tool, dH=made and made.delta,
            P=made and made.probability, decision=made and words.decision(placed),
            advantages=words.advantages(placed) or None,
        )  # fmt: skip
        if call is not None:
            yield self._span(
                f"{key}/tool", key, call.name or "a tool", SpanType.TOOL, (generated_s, end_s),
                call.argument, text.tool_output, call.status if call.status != ToolStatus.OK else "",
                seconds=call.latency_s, new_context=words.new_context(placed) or None,
            )  # fmt: skip

    def _span(
        self,
        key: str,
        parent: str | None,
        name: str,
        kind: str,
        times: tuple[float, float],
        inputs: Any,
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
        begin_ns, end_ns = (self._begin_ns + round(second * 1e9) for second in times)
        values = {
            SpanAttributeKey.REQUEST_ID: self._id,
            SpanAttributeKey.SPAN_TYPE: kind,
            SpanAttributeKey.INPUTS: inputs,
            SpanAttributeKey.OUTPUTS: outputs,
            **attributes,
        }
        return Span.from_dict(
            {
                "trace_id": _base64(bytes.fromhex(self._id.removeprefix("tr-"))),
                "span_id": _base64(_digest(8, self._id, key)),
                "parent_span_id": None if parent is None else _base64(_digest(8, self._id, parent)),
                "name": name,
                "start_time_unix_nano": begin_ns,
                "end_time_unix_nano": end_ns,
                "status": {"code": "STATUS_CODE_ERROR" if error else "STATUS_CODE_OK", "message": error},
                "attributes": {name: json.dumps(value) for name, value in values.items() if value is not None},
            }
        )

    def _endings(self) -> dict[str, str]:
        return {t.agent_id: words.ending(self.question, t) for t in self.question.tree.trajectories}

    def _feedback(self, name: str, value: float) -> Feedback:
        """A number that MLflow's search can compare: `feedback.reward > 0.5`."""
        feedback = Feedback(name, value, source=AssessmentSource("CODE", "rllib_arpo"), trace_id=self._id)
        feedback.assessment_id = f"a-{_digest(16, self._id, name).hex()}"
        return feedback

    @property
    def _id(self) -> str:
        return f"tr-{_digest(16, self.run_id, self.path.name, str(self.question.facts.number)).hex()}"

    @property
    def _end_s(self) -> float:
        return max([self.question.facts.seconds, *(_times(turn)[2] for turn in self.question.tree.turns())])

    @property
    def _begin_ns(self) -> int:
        return self.path.stat().st_mtime_ns - round(self._end_s * 1e9)


def trace_tags(question: RecordedQuestion) -> dict[str, str]:
    """Tags for searching traces; `trace_scores` has the rewards."""
    tree = question.tree
    return {
        "purpose": question.facts.purpose,
        "iteration": str(question.facts.iteration),
        "stop_reasons": ",".join(stop_reasons(tree)),
    }


def trace_scores(question: RecordedQuestion) -> dict[str, float]:
    """Mean reward and accuracy of the trajectories that count; empty if none does."""
    counting = [trajectory for trajectory in question.tree.trajectories if trajectory.counts]
    rewards = mean(question.tree.return_of(trajectory.agent_id) for trajectory in counting)
    accuracy = mean(trajectory.accuracy for trajectory in counting)
    return {} if rewards is None or accuracy is None else {"reward": rewards, "accuracy": accuracy}


def _times(turn: Turn) -> tuple[float, float, float]:
    """When a turn began, had its text, and had its tool's answer, in seconds since the question began.

    A time that was not measured equals the previous one.
    """
    times = turn.times
    if times is None:
        return 0.0, 0.0, 0.0
    return times.started, times.generated, times.generated if times.answered is None else times.answered


def _digest(size: int, *names: str) -> bytes:
    return hashlib.blake2b("\n".join(names).encode(), digest_size=size).digest()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
