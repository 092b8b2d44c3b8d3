"""A question as plain text, for the clipboard."""

from __future__ import annotations

from collections.abc import Iterator

from rllib_arpo.record.read import Question, Row, Trajectory
from rllib_arpo.show import words


def outline(question: Question) -> str:
    """The prompt, then every trajectory with its turns, calls, decisions and advantages."""
    row = question.row
    lines = [f"Question {row['question_id']} ({words.name_of(question)})", "", "Prompt:", _indented(row["prompt"]), ""]
    for trajectory in question.trajectories:
        title = f"Trajectory {trajectory.agent_id}, {words.origin(trajectory)}: {words.ending(trajectory)}"
        lines += [title, *_turns(trajectory, question), ""]
    return "\n".join(lines)


def _turns(trajectory: Trajectory, question: Question) -> Iterator[str]:
    for turn in trajectory.turns:
        yield f"  Turn {turn['depth'] + 1}, {words.tokens(len(turn['token_ids']))}"
        yield f"    {words.decision(turn, trajectory, question)}"
        yield _indented(_text(turn))
        if called := words.call(turn):
            yield f"    [{called}]"
        if turn["tool_output"] is not None:
            yield _indented(turn["tool_output"])
        if stated := words.advantages(turn):
            yield f"    {stated}"


def _text(turn: Row) -> str:
    return " ".join(map(str, turn["token_ids"])) if turn["text"] is None else turn["text"]


def _indented(text: str | None) -> str:
    return "\n".join(f"    | {line}" for line in (text or "").splitlines())
