"""A question of the record: its tree with what the record knows beside it, and the rows that hold both."""

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
#: A turn of a tree: the agent that generated it, and its index among the agent's own turns.
TurnKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TurnText:
    """The texts of a turn; all None if the model has no tokenizer.

    Attributes:
        text: what the model wrote, special tokens included.
        token_ends: where each token ends in `text`, in characters; None: the tokenizer cannot say.
        tool_output: what the model read next; None: nothing.
    """

    text: str | None
    token_ends: list[int] | None
    tool_output: str | None


@dataclass(frozen=True, slots=True)
class QuestionFacts:
    """The facts of a question beside its tree (`schema.QUESTION`)."""

    purpose: str
    iteration: int
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TurnAdvantages:
    """The advantages of a turn's tokens (`schema.ADVANTAGES`); the default is that of a turn that no leaf passes."""

    leaves: int = 0
    weight: float = 0.0
    soft_positive: float = 0.0
    soft_negative: float = 0.0
    hard_advantage: float | None = None


@dataclass(frozen=True, slots=True)
class TreeAdvantages:
    """The advantages of a tree that was trained.

    Attributes:
        leaves: agent id -> A, of the trajectories that count.
        turns: those of the turns that a leaf passes.
    """

    leaves: Mapping[str, float]
    turns: Mapping[TurnKey, TurnAdvantages]


@dataclass(frozen=True, slots=True)
class BenchmarkAnswer:
    """A trajectory's answer to a question of a benchmark, and what was asked (`schema.ANSWER`)."""

    task: str
    model: str
    style: str
    commit: str | None
    question: str
    answers: Sequence[str]
    ability: str
    sampling_seed: int | None
    answer: str | None
    exact_match: float
    f1: float | None


@dataclass(frozen=True, slots=True)
class RecordedQuestion:
    """A question as it is written into a record and as it is read.

    Attributes:
        settings: of the run (`tables.stated`).
        prompt_text, texts: decoded; None where the model has no tokenizer.
        advantages: None if the question was not trained.
        answers: agent id -> its answer; empty but for benchmarks.
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
        """A question with its texts.

        Args:
            tokenizer: decodes; nothing is tokenized. None: the model has none.
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
        """All turns, a shared one once."""
        for trajectory in self.tree.trajectories:
            yield from self.turns_of(trajectory)

    def turns_of(self, trajectory: Trajectory) -> list[PlacedTurn]:
        """The trajectory's own turns."""
        return [PlacedTurn(self, trajectory, own) for own in range(len(trajectory.turns))]

    def advantage(self, trajectory: Trajectory) -> float | None:
        """A; None unless the trajectory was trained and counts."""
        return None if self.advantages is None else self.advantages.leaves.get(trajectory.agent_id)

    def fork_budget(self) -> int:
        """Forks that the question may have: M - N."""
        budget: int = self.settings["num_rollouts"] - len(self.tree.initial())
        return budget


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    """A turn of a recorded question, at its place.

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
        """Turns of the path above it."""
        return self.trajectory.num_inherited_turns + self.own

    @property
    def text(self) -> TurnText:
        return self.question.texts[self.trajectory.agent_id, self.own]

    @property
    def after_tool(self) -> str | None:
        """The tool whose response precedes the turn; None: the prompt does."""
        if self.own:
            return self.trajectory.turns[self.own - 1].tool
        return self.question.tree.path(self.trajectory.agent_id)[self.depth - 1].tool if self.depth else None

    @property
    def advantages(self) -> TurnAdvantages | None:
        """None if the question was not trained."""
        of_tree = self.question.advantages
        return None if of_tree is None else of_tree.turns.get((self.trajectory.agent_id, self.own), TurnAdvantages())


def token_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> tuple[str | None, list[int] | None]:
    """The text of sampled tokens, special tokens included, and where each token ends in it.

    A token that holds only a part of a character ends where the token before it does; the token that completes the
    character has it. The tokens are decoded one by one, since their texts depend on those before.

    Returns:
        (text, ends): `text[ends[i - 1]:ends[i]]` is token i's; `text` is None without a tokenizer, `ends` also if the
        tokenizer is not one of the library `tokenizers`, or changes text that it has decoded already.
    """
    from tokenizers.decoders import DecodeStream

    ids = [int(token) for token in token_ids]
    text = plain_text(tokenizer, ids)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if text is None or backend is None:
        return text, None
    stream, pieces, ends, length = DecodeStream(skip_special_tokens=False), [], [], 0
    for token in ids:
        piece = stream.step(backend, token) or ""
        pieces.append(piece)
        length += len(piece)
        ends.append(length)
    if not text.startswith("".join(pieces)):
        return text, None
    if ends:
        # The last token may leave a character incomplete.
        ends[-1] = len(text)
    return text, ends


def plain_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> str | None:
    """The text of tokens, special tokens included; None without a tokenizer."""
    if tokenizer is None:
        return None
    ids = [int(token) for token in token_ids]
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


#: Columns of the record -> attributes of the values that have them. Where the first one is null, there is no value.
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
    """The rows of a question, trajectory by trajectory; one without a turn of its own has one row.

    A column that a row does not have is null.
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
    """The columns that are attributes of a value; none if there is no value."""
    return {} if value is None else {column: getattr(value, attribute) for column, attribute in attributes.items()}


def recorded_question(rows: Sequence[Row], settings: Mapping[str, Any]) -> RecordedQuestion:
    """The question of these rows, its trajectories in logical order: the inverse of `question_rows`.

    Raises:
        ValueError: a fork's parent does not precede it, or does not have the turns above it.
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
    """The value whose attributes these columns are."""
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
                f"The question {tree.question_id!r}: the trajectory {trajectory.agent_id!r} cannot be a fork of"
                f" {parent!r} after turn {inherited}."
            )
        depths[trajectory.agent_id] = trajectory.num_path_turns
