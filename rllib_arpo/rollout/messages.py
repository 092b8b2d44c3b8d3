"""The messages between the driver and the env runners."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.core.rollout_history import NO_HISTORY, RolloutReference
from rllib_arpo.envs.forkable_env import TOOL_NOTE
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.faults import Failure
from rllib_arpo.rollout.metrics import QuestionStats


class Purpose(enum.StrEnum):
    """The purpose of a question, which determines its environment and settings."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class QuestionRef:
    """A question by its number in the task of its purpose."""

    number: int
    purpose: Purpose = Purpose.TRAINING

    def __str__(self) -> str:
        return f"{self.purpose} question {self.number}"


def question_refs(numbers: Iterable[int], purpose: Purpose = Purpose.TRAINING) -> list[QuestionRef]:
    """References to the questions with these numbers."""
    return [QuestionRef(number, purpose) for number in numbers]


@dataclass(frozen=True, slots=True)
class SamplingConditions:
    """The conditions under which a question is handed to an env runner.

    Attributes:
        weight_version: of the weights that its engine must have; None: any.
        rollout_reference: what was measured in earlier questions.
    """

    weight_version: int | None = None
    rollout_reference: RolloutReference = NO_HISTORY


@dataclass(frozen=True, slots=True)
class TrajectoryError:
    """An error of an environment or a tool: it ended one trajectory, or refused one fork.

    Attributes:
        tool: the tool that ran, if the environment names it (`error.add_note`, `TOOL_NOTE`), otherwise "".
        kind: the exception's type.
        text: the exception's message, first line.
        place: file and line that raised it.
        refused_fork: whether the trajectory does not exist because of it.
    """

    agent_id: str
    tool: str
    kind: str
    text: str
    place: str
    refused_fork: bool = False

    @classmethod
    def of(cls, error: Exception, agent_id: str, *, refused_fork: bool = False) -> TrajectoryError:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        notes = [note.removeprefix(TOOL_NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(TOOL_NOTE)]
        tool = notes[0] if notes else ""
        place = f"{frame.filename}, line {frame.lineno}"
        return cls(agent_id, tool, type(error).__name__, first_line(error), place, refused_fork)

    def __str__(self) -> str:
        tool = f"the tool {self.tool!r}" if self.tool else "the environment"
        return f"trajectory {self.agent_id}: {tool} raised {self.kind}: {self.text} ({self.place})"


@dataclass(frozen=True, slots=True)
class FailedQuestion:
    """A question that could not be sampled, although engine and data work."""

    ref: QuestionRef
    failure: Failure


@dataclass(frozen=True, slots=True)
class SampledQuestion:
    """One question with its tree, as the driver gets it.

    Attributes:
        seconds: wall time from the begin of the environment's reset to its last ending.
        errors: those that ended a trajectory with `StopReason.ERROR`, or refused a fork.
    """

    ref: QuestionRef
    episode: MultiAgentEpisode
    stats: QuestionStats
    seconds: float = 0.0
    errors: tuple[TrajectoryError, ...] = ()

    @property
    def number(self) -> int:
        return self.ref.number


@dataclass(frozen=True, slots=True)
class Reply:
    """An env runner's answer to the driver.

    Attributes:
        questions: those that have ended since the last answer.
        failed: those that could not be sampled; they may succeed when they are asked again.
        in_flight: questions that the env runner is still working on.
        metrics: the metrics that callbacks logged, by purpose of `questions` (states of `MetricsLogger`s).
    """

    questions: list[SampledQuestion]
    in_flight: frozenset[QuestionRef]
    metrics: dict[Purpose, dict[str, Any]]
    failed: list[FailedQuestion] = field(default_factory=list)
