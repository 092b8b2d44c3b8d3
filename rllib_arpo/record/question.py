"""A question of the record: its tree, and what the record knows beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.core.tree import QuestionTree, Trajectory, Turn
from rllib_arpo.record.texts import TurnText, plain_text, token_text

#: A turn of a tree: the agent that generated it, and its index among the agent's own turns.
TurnKey = tuple[str, int]


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
            (t.agent_id, own): TurnText(*token_text(tokenizer, turn.token_ids), _response(tokenizer, turn))
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


def _response(tokenizer: Any, turn: Turn) -> str | None:
    return plain_text(tokenizer, turn.observation) if len(turn.observation) else None


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
