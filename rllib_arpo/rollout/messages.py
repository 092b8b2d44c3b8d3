"""The messages between the driver and the env runners."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.core.rollout_history import NO_HISTORY, RolloutReference
from rllib_arpo.core.token_counts import sampled_tokens
from rllib_arpo.core.tree import QuestionTree, StopReason
from rllib_arpo.envs.forkable_env import TOOL_NOTE
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.faults import Failure
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.terminal import printable


class Purpose(enum.StrEnum):
    """The purpose of a question, which determines its environment and settings."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class QuestionRef:
    """A place in the order of the questions of a purpose.

    Attributes:
        number: the place; it seeds the forks and the sampling.
        question: the number that the environment gets; None: the place itself.
    """

    number: int
    purpose: Purpose = Purpose.TRAINING
    question: int | None = None

    @property
    def asked(self) -> int:
        """The number that the environment is asked for."""
        return self.number if self.question is None else self.question

    def __str__(self) -> str:
        return f"{self.purpose} question {self.asked}"


def question_refs(numbers: Iterable[int], purpose: Purpose = Purpose.TRAINING) -> list[QuestionRef]:
    """References to the questions with these numbers."""
    return [QuestionRef(number, purpose) for number in numbers]


@dataclass(frozen=True, slots=True)
class SamplingConditions:
    """The conditions under which a question is handed to an env runner.

    Attributes:
        weight_version: the version that the engine's weights must have; None: any.
        rollout_reference: the measurements of earlier questions.
    """

    weight_version: int | None = None
    rollout_reference: RolloutReference = NO_HISTORY


@dataclass(frozen=True, slots=True)
class TrajectoryError:
    """An error of an environment or a tool: it ended one trajectory, or refused one fork. Equal ones have one cause.

    Attributes:
        tool: the tool that ran, if the environment names it (`error.add_note`, `TOOL_NOTE`), otherwise "".
        kind: the exception's type.
        text: the exception's message, first line.
        place: file and line that raised it.
        stop_reason: how the trajectory ended; None: the error refused the fork, so the trajectory does not exist.
    """

    agent_id: str = field(compare=False)
    tool: str
    kind: str
    text: str = field(compare=False)
    place: str
    stop_reason: StopReason | None

    @classmethod
    def of(cls, error: Exception, agent_id: str, stop_reason: StopReason | None) -> TrajectoryError:
        frames = traceback.extract_tb(error.__traceback__)
        notes = [note.removeprefix(TOOL_NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(TOOL_NOTE)]
        tool = notes[0] if notes else ""
        place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "never raised"
        return cls(agent_id, tool, type(error).__name__, first_line(error), place, stop_reason)

    def __str__(self) -> str:
        tool = f"the tool {self.tool!r}" if self.tool else "the environment"
        return printable(f"trajectory {self.agent_id}: {tool} raised {self.kind}: {self.text} ({self.place})")


@dataclass(frozen=True, slots=True)
class FailedQuestion:
    """A question that could not be sampled; `failure.retry` says whether another try may succeed."""

    ref: QuestionRef
    failure: Failure


@dataclass(frozen=True, slots=True)
class SampledQuestion:
    """One question with its tree, and facts that are not in the tree.

    Attributes:
        episode: the tree, which callbacks and connectors of users see as RLlib's episode.
        entropy_window: k, how many of a turn's first entropies a decision reads.
        seconds: wall time from the start of the environment's reset to the end of the last trajectory.
        errors: the errors that ended a trajectory, or refused a fork.
        prefix_tokens_reused: tokens of the forks' prefixes that came from the engine's prefix cache.
        tokens_of_removed_forks: tokens of forks that are not in the tree.
        requests_refused: requests of agents that the env runner has refused since its previous question ended.
        tools_offered: the tools that the model could call.
    """

    ref: QuestionRef
    episode: TreeEpisode
    entropy_window: int = 0
    seconds: float = 0.0
    errors: tuple[TrajectoryError, ...] = ()
    prefix_tokens_reused: int = 0
    tokens_of_removed_forks: int = 0
    requests_refused: int = 0
    tools_offered: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return self.ref.number

    @property
    def tree(self) -> QuestionTree:
        return self.episode.tree

    @property
    def num_generated_tokens(self) -> int:
        """All generated tokens, also of forks that were removed; a shared one counts once."""
        return sampled_tokens(self.tree) + self.tokens_of_removed_forks

    @property
    def forks_refused(self) -> int:
        """Forks that the environment refused by an error."""
        return sum(error.stop_reason is None for error in self.errors)


@dataclass(frozen=True, slots=True)
class RunnerAnswer:
    """An env runner's answer to the driver.

    Attributes:
        questions: the questions that have ended since the last answer.
        failed: the questions that could not be sampled.
        in_flight: questions that the env runner is still working on.
        metrics: the metrics that callbacks logged, by purpose of `questions` (states of `MetricsLogger`s).
    """

    questions: list[SampledQuestion]
    in_flight: frozenset[QuestionRef]
    metrics: dict[Purpose, dict[str, Any]]
    failed: list[FailedQuestion] = field(default_factory=list)
