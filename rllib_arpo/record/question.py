"""Converts a question of the record, with its tree and further facts, to rows and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from rllib_arpo.core.tree import (
    ForkDecision,
    QuestionTree,
    StopReason,
    ToolCall,
    ToolStatus,
    Trajectory,
    Turn,
    TurnTimes,
    fork_path,
)
from rllib_arpo.record.schema import ADVANTAGES, ANSWER

Row = Mapping[str, Any]
Value = TypeVar("Value")
#: A turn of a tree: the id of its agent, and its index among the agent's own turns.
TurnKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TurnText:
    """The texts of a turn; all are None if the model has no tokenizer.

    Attributes:
        text: the model's text with special tokens.
        token_ends: where each token ends in `text`, in characters; None if the tokenizer cannot say.
        tool_output: the text that the model read next; None if there was none.
    """

    text: str | None
    token_ends: list[int] | None
    tool_output: str | None


@dataclass(frozen=True, slots=True)
class QuestionFacts:
    """The facts of a question that are not in its tree (`schema.QUESTION`)."""

    purpose: str
    iteration: int
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TurnAdvantages:
    """The advantages of a turn's tokens (`schema.ADVANTAGES`). The defaults describe a turn that no leaf passes."""

    leaves: int = 0
    weight: float = 0.0
    soft_positive: float = 0.0
    soft_negative: float = 0.0
    hard_advantage: float | None = None


@dataclass(frozen=True, slots=True)
class TreeAdvantages:
    """The advantages of a tree that was trained.

    Attributes:
        leaves: agent id -> A, for trajectories that count.
        turns: turn -> its advantages, for turns that a leaf passes.
    """

    leaves: Mapping[str, float]
    turns: Mapping[TurnKey, TurnAdvantages]


@dataclass(frozen=True, slots=True)
class BenchmarkAnswer:
    """A benchmark question and a trajectory's answer to it (`schema.ANSWER`)."""

    task: str
    model: str
    commit: str | None
    question: str
    answers: Sequence[str]
    ability: str
    answer: str | None
    exact_match: float
    f1: float | None


@dataclass(frozen=True, slots=True)
class RecordedQuestion:
    """A question as a record writes and reads it.

    Attributes:
        settings: the run's settings (`tables.stated`).
        prompt_text, texts: decoded texts; None if the model has no tokenizer.
        advantages: None if the question was not trained.
        answers: agent id -> its answer; only benchmarks have some.
    """

    facts: QuestionFacts
    tree: QuestionTree
    settings: Mapping[str, Any]
    prompt_text: str | None
    texts: Mapping[TurnKey, TurnText]
    advantages: TreeAdvantages | None = None
    answers: Mapping[str, BenchmarkAnswer] = field(default_factory=dict)

    @classmethod
    def decoded(
        cls, tree: QuestionTree, facts: QuestionFacts, tokenizer: Any, settings: Mapping[str, Any], **more: Any
    ) -> RecordedQuestion:
        """A question with its decoded texts.

        Args:
            tokenizer: only decodes. None if the model has none.
            more: `advantages` and `answers`.
        """
        texts = {
            (t.agent_id, own): TurnText(
                *token_text(tokenizer, turn.token_ids),
                tool_output=plain_text(tokenizer, turn.observation) if len(turn.observation) else None,
            )
            for t in tree.trajectories
            for own, turn in enumerate(t.turns)
        }
        return cls(facts, tree, settings, plain_text(tokenizer, tree.prompt), texts, **more)

    def turns(self) -> Iterator[PlacedTurn]:
        """All turns. A turn that several trajectories share appears once."""
        for trajectory in self.tree.trajectories:
            yield from self.turns_of(trajectory)

    def turns_of(self, trajectory: Trajectory) -> list[PlacedTurn]:
        """The trajectory's own turns."""
        return [PlacedTurn(self, trajectory, own) for own in range(len(trajectory.turns))]

    def advantage(self, trajectory: Trajectory) -> float | None:
        """A of the trajectory; None unless it was trained and counts."""
        return None if self.advantages is None else self.advantages.leaves.get(trajectory.agent_id)

    def fork_budget(self) -> int:
        """How many forks the question may have: M - N."""
        budget: int = self.settings["num_rollouts"] - len(self.tree.initial())
        return budget


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    """A turn of a recorded question, with its position in the tree.

    Attributes:
        own: its index among the trajectory's own turns.
    """

    question: RecordedQuestion
    trajectory: Trajectory
    own: int

    @property
    def turn(self) -> Turn:
        return self.trajectory.turns[self.own]

    @property
    def depth(self) -> int:
        """How many turns precede it on its path."""
        return self.trajectory.num_inherited_turns + self.own

    @property
    def text(self) -> TurnText:
        return self.question.texts[self.trajectory.agent_id, self.own]

    @property
    def after_tool(self) -> str | None:
        """The tool whose response precedes the turn; None if the prompt precedes it."""
        if self.own:
            return self.trajectory.turns[self.own - 1].tool
        return self.question.tree.path(self.trajectory.agent_id)[self.depth - 1].tool if self.depth else None

    @property
    def advantages(self) -> TurnAdvantages | None:
        """None if the question was not trained."""
        of_tree = self.question.advantages
        return None if of_tree is None else of_tree.turns.get((self.trajectory.agent_id, self.own), TurnAdvantages())


def token_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> tuple[str | None, list[int] | None]:
    """The text of sampled tokens with special tokens, and where each token ends in it.

    A character belongs to the token that completes it; a token with only a part of a character has no text. The tokens
    are decoded one by one, since their texts depend on earlier tokens.

    Returns:
        (text, ends): token i is `text[ends[i - 1]:ends[i]]`. Without a tokenizer both are None. `ends` is also None if
        the tokenizer is not from the library `tokenizers`, or changes text that it has already decoded, as those with a
        token for each byte do after a broken character.
    """
    from tokenizers.decoders import DecodeStream

    ids = [int(token) for token in token_ids]
    text = plain_text(tokenizer, ids)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if text is None or backend is None:
        return text, None
    stream, pieces, ends, length = DecodeStream(skip_special_tokens=False), [], [], 0
    for token in ids:
        try:
            piece = stream.step(backend, token) or ""
        except Exception as error:  # The library has no class of its own for this.
            if not str(error).startswith("Invalid prefix encountered"):
                raise
            return text, None
        pieces.append(piece)
        length += len(piece)
        ends.append(length)
    if not text.startswith("".join(pieces)):
        return text, None
    if ends:
        # The last character may be incomplete.
        ends[-1] = len(text)
    return text, ends


def plain_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> str | None:
    """The text of tokens with special tokens; None without a tokenizer."""
    if tokenizer is None:
        return None
    ids = [int(token) for token in token_ids]
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


#: Column of the record -> attribute of the value that has it. If the first column is null, there is no value.
_FACTS = {"purpose": "purpose", "iteration": "iteration", "number": "number", "question_seconds": "seconds"}
_TRAJECTORY = {
    "agent_id": "agent_id", "parent": "parent", "inherited_turns": "num_inherited_turns", "topped_up": "topped_up",
    "stop_reason": "stop_reason", "accuracy": "accuracy", "format_valid": "format_valid",
}  # fmt: skip
_TURN = {
    "token_ids": "token_ids", "log_probs": "log_probs", "entropies": "entropies", "weight_versions": "weight_versions",
    "turn_reward": "reward", "new_context": "new_context",
}  # fmt: skip
_TEXT = {name: name for name in ("text", "token_ends", "tool_output")}
_TIMES = {"started_s": "started", "generated_s": "generated", "answered_s": "answered"}
_CALL = {"tool": "name", "tool_input": "argument", "tool_status": "status", "tool_seconds": "latency_s"}
_DECISION = {name: name for name in ("level", "delta", "probability", "eligible", "budget", "children")}
_ADVANTAGES = {column.name: column.name for column in ADVANTAGES}
_ANSWER = {column.name: column.name for column in ANSWER}


def question_rows(question: RecordedQuestion) -> list[Row]:
    """The rows of a question, trajectory by trajectory. A trajectory without a turn of its own has one row.

    A column without a value is null.
    """
    tree, rows = question.tree, []
    of_question = _columns(_FACTS, question.facts) | {
        "question_id": tree.question_id,
        "trained": question.advantages is not None,
        "prompt": question.prompt_text,
        "prompt_tokens": len(tree.prompt),
    }
    for trajectory in tree.trajectories:
        shared = {
            **of_question,
            **_columns(_TRAJECTORY, trajectory),
            "counts": trajectory.counts,
            "reward": tree.return_of(trajectory.agent_id),
            "advantage": question.advantage(trajectory),
            **_columns(_ANSWER, question.answers.get(trajectory.agent_id)),
        }
        rows += [shared | own for own in map(_turn_row, question.turns_of(trajectory))] or [shared]
    return [rows[0] | {"prompt_ids": tree.prompt}, *rows[1:]]


def _turn_row(placed: PlacedTurn) -> dict[str, Any]:
    turn = placed.turn
    return {
        "turn": placed.own,
        "depth": placed.depth,
        **_columns(_TURN, turn),
        **_columns(_TEXT, placed.text),
        **_columns(_TIMES, turn.times),
        **_columns(_CALL, turn.tool_call),
        "tool_output_tokens": len(turn.observation),
        "tool_output_ids": turn.observation if len(turn.observation) else None,
        "after_tool": placed.after_tool,
        **_columns(_DECISION, turn.decision),
        **_columns(_ADVANTAGES, placed.advantages),
    }


def _columns(attributes: Mapping[str, str], value: object) -> dict[str, Any]:
    """Column -> the value's attribute; empty if there is no value."""
    return {} if value is None else {column: getattr(value, attribute) for column, attribute in attributes.items()}


def recorded_question(rows: Sequence[Row], settings: Mapping[str, Any]) -> RecordedQuestion:
    """The inverse of `question_rows`; a fork comes after its parent.

    Raises:
        ValueError: a fork has no parent among the rows, or more inherited turns than its parent has turns.
    """
    by_agent: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: fork_path(row["agent_id"])):
        by_agent.setdefault(row["agent_id"], []).append(row)
    with_turn = {
        (agent_id, i): row
        for agent_id, own in by_agent.items()
        for i, row in enumerate(row for row in own if row["turn"] is not None)
    }
    first = rows[0]
    prompt = next((row["prompt_ids"] for row in rows if row["prompt_ids"] is not None), ())
    tree = QuestionTree(first["question_id"], np.array(prompt, np.int32), tuple(map(_trajectory, by_agent.values())))
    _check_forks(tree)
    advantages = None
    if first["trained"]:
        leaves = {agent_id: own[0]["advantage"] for agent_id, own in by_agent.items()}
        advantages = TreeAdvantages(
            {agent_id: advantage for agent_id, advantage in leaves.items() if advantage is not None},
            {key: _value(TurnAdvantages, _ADVANTAGES, row) or TurnAdvantages() for key, row in with_turn.items()},
        )
    answers = {agent_id: _value(BenchmarkAnswer, _ANSWER, own[0]) for agent_id, own in by_agent.items()}
    return RecordedQuestion(
        facts=QuestionFacts(**{attribute: first[column] for column, attribute in _FACTS.items()}),
        tree=tree,
        settings=settings,
        prompt_text=first["prompt"],
        texts={key: TurnText(**{name: row[name] for name in _TEXT}) for key, row in with_turn.items()},
        advantages=advantages,
        answers={agent_id: answer for agent_id, answer in answers.items() if answer is not None},
    )


def _value(kind: type[Value], attributes: Mapping[str, str], row: Row) -> Value | None:
    """Makes a value from its columns; None if the first one is null."""
    if row[next(iter(attributes))] is None:
        return None
    return kind(**{attribute: row[column] for column, attribute in attributes.items()})


def _trajectory(rows: Sequence[Row]) -> Trajectory:
    own = {attribute: rows[0][column] for column, attribute in _TRAJECTORY.items()}
    turns = tuple(_turn(row) for row in rows if row["turn"] is not None)
    return Trajectory(**own | {"stop_reason": StopReason(own["stop_reason"])}, turns=turns)


def _turn(row: Row) -> Turn:
    call = _value(ToolCall, _CALL, row)
    return Turn(
        token_ids=np.array(row["token_ids"], np.int32),
        log_probs=np.array(row["log_probs"], np.float32),
        entropies=np.array(row["entropies"], np.float32),
        observation=np.array(row["tool_output_ids"] or (), np.int32),
        weight_versions=np.array(row["weight_versions"], np.int32),
        tool_call=call and replace(call, status=ToolStatus(call.status)),
        decision=_value(ForkDecision, _DECISION, row),
        times=_value(TurnTimes, _TIMES, row),
        reward=row["turn_reward"],
        new_context=row["new_context"],
    )


def _check_forks(tree: QuestionTree) -> None:
    depths: dict[str, int] = {}
    for trajectory in tree.trajectories:
        parent, inherited = trajectory.parent, trajectory.num_inherited_turns
        if not 0 <= inherited <= (0 if parent is None else depths.get(parent, -1)):
            raise ValueError(
                f"Question {tree.question_id!r}: trajectory {trajectory.agent_id!r} cannot be a fork of {parent!r}"
                f" after turn {inherited}."
            )
        depths[trajectory.agent_id] = trajectory.num_path_turns
