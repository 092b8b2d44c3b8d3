"""Questions of a record by hand."""

from typing import Any

from rllib_arpo.record.read import Question, Trajectory


def sample(number: int = 0, **changes: Any) -> Trajectory:
    """A right answer in one turn of nine tokens, with these changes of the row; `turns` replaces the turns."""
    turns = changes.pop("turns", (turn(),))
    row = {
        "agent_id": str(number),
        "commit": "abc",
        "reward": 1.0,
        "accuracy": 1.0,
        "exact_match": 1.0,
        "f1": None,
        "format_valid": True,
        "stop_reason": "answer",
        "counts": True,
    }
    return Trajectory(row | changes, tuple(turns))


def turn(tokens: int = 9, tool_status: str | None = None) -> dict[str, Any]:
    return {"token_ids": [0] * tokens, "tool": tool_status and "python", "tool_status": tool_status}


def wrong(number: int = 0, **changes: Any) -> Trajectory:
    return sample(number, **{"reward": 0.0, "accuracy": 0.0, "exact_match": 0.0} | changes)


def question(number: int, *samples: Trajectory) -> Question:
    return Question({"number": number, "question_id": f"q{number}"}, samples, {})
