"""Records by hand."""

from __future__ import annotations

from rllib_arpo.evaluation.records import QuestionRecord, SampleRecord, TurnRecord


def sample(number: int = 0, **changes) -> SampleRecord:
    """A right answer in one turn, with these changes."""
    fields = {
        "sample": number,
        "seed": 7,
        "turns": (TurnRecord("<answer> \\boxed{4} </answer>", 9, None, None, None, None),),
        "answer": "4",
        "reward": 1.0,
        "accuracy": 1.0,
        "correct": True,
        "exact_match": 1.0,
        "f1": None,
        "format_valid": True,
        "tool_calls": 0,
        "tool_calls_failed": 0,
        "response_tokens": 9,
        "stop_reason": "answer",
        "truncated": False,
        "masked": False,
    }
    return SampleRecord(**fields | changes)


def wrong(number: int = 0, **changes) -> SampleRecord:
    return sample(
        number, **{"answer": "5", "reward": 0.0, "accuracy": 0.0, "correct": False, "exact_match": 0.0} | changes
    )


def question(number: int, *samples: SampleRecord) -> QuestionRecord:
    return QuestionRecord(
        number=number,
        question_id=f"q{number}",
        question="What is 2 + 2?",
        answers=("4",),
        ability="math",
        prompt="What is 2 + 2?",
        prompt_tokens=14,
        seconds=0.5,
        samples=samples,
    )
