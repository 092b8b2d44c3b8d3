"""From a recorded question to spans."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from rllib_arpo.core.tree import ForkDecision, QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, TurnTimes
from rllib_arpo.mlflow.question_trace import QuestionTrace, trace_scores, trace_tags
from rllib_arpo.record.question import QuestionFacts, RecordedQuestion, question_rows
from rllib_arpo.record.read import questions_of
from rllib_arpo.record.schema import SCHEMA
from tests.helpers.approved import assert_approved
from tests.record.trees import SEARCH, TOKENIZER, TREE, ids, turn

SPANS = Path(__file__).with_name("spans.txt")
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


def trace_spans(question: RecordedQuestion) -> list[dict]:
    """What each span says, with names in place of MLflow's ids; without what is empty."""
    spans = list(QuestionTrace(question, "run", Path(__file__)).spans())
    names, start = {span.span_id: span.name for span in spans}, spans[0].start_time_ns
    told = [
        {
            "name": span.name,
            "parent": names.get(span.parent_id),
            "type": span.span_type,
            "times": [(span.start_time_ns - start) / 1e9, (span.end_time_ns - start) / 1e9],
            "inputs": span.inputs,
            "outputs": span.outputs,
            "error": span.status.description or None,
            **{key: value for key, value in span.attributes.items() if not key.startswith("mlflow.")},
        }
        for span in spans
    ]
    return [{key: value for key, value in span.items() if value is not None} for span in told]


def test_the_spans_of_trees_are_those_of_the_file():
    """Of a fork and of a tool that fails; without times; and of a top-up without a turn, without a tokenizer."""
    root = FORKED.trajectories[0]
    untimed = replace(root, turns=tuple(replace(each, times=None) for each in root.turns))
    alone = recorded(replace(FORKED, trajectories=(untimed,)))
    questions = (recorded(FORKED), alone, recorded(TREE, tokenizer=None))
    lines = [[f"{json.dumps(span)}\n" for span in trace_spans(question)] for question in questions]
    assert_approved(SPANS, "\n".join("".join(spans) for spans in lines))


def test_previews_fit_the_columns_of_a_server():
    """MLflow's database has 1,000 characters for each; SQLite alone takes more."""
    many = tuple(replace(FORKED.trajectories[0], agent_id=str(i)) for i in range(64))
    info = QuestionTrace(recorded(replace(FORKED, prompt=ids("long " * 500), trajectories=many)), "run", Path()).info(
        "0"
    )
    assert (len(info.request_preview), len(info.response_preview)) == (1000, 1000)


def test_what_a_trace_is_found_by():
    question = recorded(FORKED)
    assert trace_tags(question) == {
        "purpose": "evaluation",
        "iteration": "7",
        "stop_reasons": "answer,engine_failure",
    }
    # The fork does not count.
    assert trace_scores(question) == {"reward": 1.0, "accuracy": 0.5}
