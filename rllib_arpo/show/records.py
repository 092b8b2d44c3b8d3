"""The names of `record.read`, for the modules of tracking that still import them from here."""

from rllib_arpo.record.read import (
    Question,
    RecordFile,
    Row,
    Trajectory,
    numbered_questions,
    questions,
    questions_of,
    record_files,
)

__all__ = [
    "Question", "RecordFile", "Row", "Trajectory", "numbered_questions", "questions", "questions_of", "record_files",
]  # fmt: skip
