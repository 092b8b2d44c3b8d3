"""From a recorded question to spans, literally."""

from dataclasses import dataclass, replace

import pyarrow as pa

from rllib_arpo.core.tree import ForkDecision, QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, TurnTimes
from rllib_arpo.mlflow.question_trace import QuestionTrace, trace_scores, trace_tags
from rllib_arpo.record.question import QuestionFacts, RecordedQuestion, question_rows
from rllib_arpo.record.read import questions_of
from rllib_arpo.record.schema import SCHEMA
from tests.record.trees import SEARCH, TOKENIZER, TREE, ids, turn

SETTINGS = {
    "num_rollouts": 2,
    "branching": "threshold",
    "branch_base_probability": 0.5,
    "branch_entropy_weight": 0.2,
    "branch_threshold": 0.5,
    "consecutive_fork_penalty": 0.0,
}
#: "0" searches, calls python, which fails, and answers; "0.0" was forked after the search, and its engine failed.
FORKED = QuestionTree(
    "lamps",
    ids("Q?"),
    (
        Trajectory(
            "0",
            (
                turn("a", "12", (0.5,), tool_call=SEARCH, times=TurnTimes(0.0, 1.0, 1.5)),
                turn(
                    "b",
                    "no",
                    tool_call=ToolCall("python", ToolStatus.ERROR, 0.25, "1/0"),
                    decision=ForkDecision(1.25, 0.25, 0.55, eligible=True, children=1, budget=1),
                    times=TurnTimes(1.5, 2.0, 2.25),
                ),
                turn("c", times=TurnTimes(2.25, 3.0, 3.0), reward=1.0),
            ),
            StopReason.ANSWER,
            accuracy=0.5,
            format_valid=True,
        ),
        Trajectory(
            "0.0",
            (turn("de", version=4, times=TurnTimes(1.75, 2.5)),),
            StopReason.ENGINE_FAILURE,
            parent="0",
            num_inherited_turns=1,
        ),
    ),
)


def recorded(tree: QuestionTree, tokenizer=TOKENIZER) -> RecordedQuestion:
    """As it is read from a file of the record."""
    facts = QuestionFacts("evaluation", iteration=7, number=41, seconds=3.5)
    rows = question_rows(RecordedQuestion.decoded(tree, facts, tokenizer, SETTINGS))
    (question,) = questions_of(pa.Table.from_pylist(rows, schema=SCHEMA).to_pylist(), SETTINGS)
    return question


@dataclass(frozen=True)
class TraceSpan:
    """What a span says, with names instead of MLflow's ids."""

    name: str
    parent: str | None
    kind: str
    seconds: tuple[float, float]
    inputs: object = None
    outputs: object = None
    error: str = ""


def trace_spans(question: RecordedQuestion) -> list[tuple[TraceSpan, dict]]:
    """Each span, and its attributes."""
    spans = list(QuestionTrace(question, "run", "file", 10**12).spans())
    names, start = {span.span_id: span.name for span in spans}, spans[0].start_time_ns
    return [
        (
            TraceSpan(
                span.name,
                names.get(span.parent_id),
                span.span_type,
                ((span.start_time_ns - start) / 1e9, (span.end_time_ns - start) / 1e9),
                span.inputs,
                span.outputs,
                span.status.description,
            ),
            {key: value for key, value in span.attributes.items() if not key.startswith("mlflow.")},
        )
        for span in spans
    ]


OUTCOMES = {"0": {"reward": 1.0, "stop_reason": "answer"}, "0.0": {"stop_reason": "engine_failure"}}
FORK = "fork 0.0 after turn 1"
SPANS = [
    TraceSpan("lamps", None, "CHAIN", (0.0, 3.5), "Q?", OUTCOMES, "engine_failure"),
    TraceSpan("trajectory 0", "lamps", "AGENT", (0.0, 3.0), None, "c"),
    TraceSpan("turn 1", "trajectory 0", "LLM", (0.0, 1.5), None, "a"),
    TraceSpan("search", "turn 1", "TOOL", (1.0, 1.5), "lamp", "12"),
    TraceSpan("turn 2", "trajectory 0", "LLM", (1.5, 2.25), None, "b"),
    TraceSpan("python", "turn 2", "TOOL", (2.0, 2.25), "1/0", "no", "error"),
    TraceSpan("turn 3", "trajectory 0", "LLM", (2.25, 3.0), None, "c"),
    TraceSpan(FORK, "trajectory 0", "AGENT", (1.75, 2.5), None, "de", "engine_failure"),
    TraceSpan("turn 2", FORK, "LLM", (1.75, 2.5), None, "de"),
]
OF_QUESTION = {"purpose": "evaluation", "iteration": 7, "number": 41, "trained": False}
DECISION = {
    "dH": 0.25,
    "P": 0.55,
    "level": 1.25,
    "eligible": True,
    "budget": 1,
    "children": 1,
    "decision": "dH = +0.25, P = 0.550 (from 0.5 + 0.2 dH), forks where P > 0.5: forked once, 0 of 1 left.",
}
OF_TURN = {"tokens": 1, "entropies": [1.0], "weight_versions": [3]}
ENDED = {"reward": 1.0, "accuracy": 0.5, "format_valid": True, "stop_reason": "answer", "counts": True}
FAILED = {"reward": 0.0, "accuracy": 0.0, "format_valid": False, "stop_reason": "engine_failure", "counts": False}
ATTRIBUTES = [
    OF_QUESTION,
    ENDED | {"topped_up": False},
    OF_TURN | {"entropies": [0.5]},
    {"seconds": 0.5, "tokens": 2},
    OF_TURN | {"after_tool": "search"} | DECISION,
    {"seconds": 0.25, "tokens": 2},
    OF_TURN | {"after_tool": "python"},
    FAILED | {"topped_up": False} | DECISION,
    {"tokens": 2, "entropies": [1.0], "weight_versions": [4], "after_tool": "search"},
]


def test_the_spans_of_a_fork_and_of_a_tool_that_fails():
    spans, attributes = zip(*trace_spans(recorded(FORKED)), strict=True)
    assert list(spans) == SPANS
    assert list(attributes) == ATTRIBUTES


def test_what_a_trace_is_found_by():
    question = recorded(FORKED)
    assert trace_tags(question) == {
        "purpose": "evaluation",
        "iteration": "7",
        "question_id": "lamps",
        "forks": "1",
        "stop_reasons": "answer,engine_failure",
        "tools": "python,search",
        "failed_tools": "python",
    }
    assert "failed_tools" not in trace_tags(recorded(TREE))
    # The fork does not count.
    assert trace_scores(question) == {"reward": 1.0, "best_reward": 1.0, "accuracy": 0.5}


def test_scores_are_of_what_counts():
    # "0" earned 1, "1" -1; "2" and "0.0" are masked.
    assert trace_scores(recorded(TREE)) == {"reward": 0.0, "best_reward": 1.0, "accuracy": 0.5}
    masked = replace(FORKED, trajectories=(replace(FORKED.trajectories[0], stop_reason=StopReason.DEADLINE),))
    assert trace_scores(recorded(masked)) == {}


def test_trajectories_without_a_turn_and_models_without_a_tokenizer():
    (root, _), *below = trace_spans(recorded(TREE, tokenizer=None))
    spans = {(span.parent, span.name): span for span, _ in below}
    top_up = spans[root.name, "top-up 2"]
    assert (top_up.outputs, top_up.seconds) == (None, (0.0, 0.0))
    assert (root.inputs, spans["trajectory 1", "turn 1"].outputs) == (None, ids("B").tolist())


def test_times_that_were_not_measured_are_those_of_the_question_s_begin():
    turns = tuple(replace(each, times=None) for each in FORKED.trajectories[0].turns)
    spans = trace_spans(recorded(replace(FORKED, trajectories=(replace(FORKED.trajectories[0], turns=turns),))))
    assert [span.seconds for span, _ in spans] == [(0.0, 3.5)] + [(0.0, 0.0)] * (len(spans) - 1)
