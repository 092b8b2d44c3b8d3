"""A recorded question as a trace: MLflow's entities.

MLflow's own tracer is not used. It exports in threads that report an error to the log and drop the trace, and it knows
one store a process.
"""

from __future__ import annotations

import base64
import hashlib
import json

from mlflow.entities import AssessmentSource, Feedback, Span, TraceInfo, TraceLocation, TraceState
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey

from rllib_arpo.show.records import Question
from rllib_arpo.tracking.trace_spans import TraceSpan, trace_scores, trace_spans, trace_tags
from rllib_arpo.tracking.transcripts import last_lines

#: Metadata of a trace: the file of the record from which it was made, and when that file was written (ns).
FILE, WRITTEN = "record_file", "record_written"


def mlflow_trace(
    question: Question, experiment: str, run_id: str, file: str, written: int
) -> tuple[TraceInfo, list[Span]]:
    """A question as MLflow's entities.

    Their ids are functions of the run, the file and the question, so that the same question gets the same ones.

    Args:
        file: the name of the record's file.
        written: when it was written, ns since the epoch. The record has the times within a question, but no time of
            day: the question is taken to have ended when its file was written.
    """
    drawn = trace_spans(question)
    begin_ns = written - round(drawn[0].end_s * 1e9)
    trace_id = _digest(16, run_id, file, str(question.row["number"]))
    name = f"tr-{trace_id:032x}"
    spans = [_span(span, trace_id, name, begin_ns) for span in drawn]
    asked = "" if question.row["prompt"] is None else last_lines(question.row["prompt"])
    info = TraceInfo(
        trace_id=name,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=begin_ns // 1_000_000,
        state=TraceState.ERROR if drawn[0].error else TraceState.OK,
        # What MLflow's list shows, beside the rewards.
        request_preview=f"{drawn[0].name}: {asked}",
        response_preview=json.dumps(drawn[0].outputs),
        execution_duration=round(drawn[0].end_s * 1000),
        trace_metadata={TraceMetadataKey.SOURCE_RUN: run_id, FILE: file, WRITTEN: str(written)},
        tags={TraceTagKey.TRACE_NAME: drawn[0].name, **trace_tags(question)},
        assessments=[_feedback(name, key, value) for key, value in trace_scores(question).items()],
    )
    return info, spans


def _span(span: TraceSpan, trace_id: int, trace_name: str, begin_ns: int) -> Span:
    def span_id(key: str) -> str:
        return _base64(_digest(8, trace_name, key), 8)

    attributes = {
        SpanAttributeKey.REQUEST_ID: trace_name,
        SpanAttributeKey.SPAN_TYPE: span.kind,
        SpanAttributeKey.INPUTS: span.inputs,
        SpanAttributeKey.OUTPUTS: span.outputs,
        **span.attributes,
    }
    return Span.from_dict(
        {
            "trace_id": _base64(trace_id, 16),
            "span_id": span_id(span.key),
            "parent_span_id": None if span.parent is None else span_id(span.parent),
            "name": span.name,
            "start_time_unix_nano": begin_ns + round(span.begin_s * 1e9),
            "end_time_unix_nano": begin_ns + round(span.end_s * 1e9),
            "status": {"code": "STATUS_CODE_ERROR" if span.error else "STATUS_CODE_OK", "message": span.error},
            "attributes": {key: json.dumps(value) for key, value in attributes.items() if value is not None},
        }
    )


def _feedback(trace_name: str, name: str, value: float) -> Feedback:
    """A number by which MLflow can search: `feedback.reward > 0.5`."""
    source = AssessmentSource(source_type="CODE", source_id="rllib_arpo")
    feedback = Feedback(name=name, value=value, source=source, trace_id=trace_name)
    feedback.assessment_id = f"a-{_digest(16, trace_name, name):032x}"
    return feedback


def _digest(size: int, *names: str) -> int:
    return int.from_bytes(hashlib.blake2b("\n".join(names).encode(), digest_size=size).digest(), "big")


def _base64(number: int, size: int) -> str:
    return base64.b64encode(number.to_bytes(size, "big")).decode()
