"""The questions of a dispatcher: which of them wait, what has happened to each, and which one is asked next."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rllib_arpo.faults import Failure
from rllib_arpo.rollout.messages import Purpose, QuestionRef, SampledQuestion

logger = logging.getLogger("rllib_arpo")

#: Times that a question may raise before it is given up.
MAX_RAISES = 3
#: A question that was in flight during this many failures of env runners may be the cause: it is asked alone.
MAX_LOSSES = 2
#: A suspect is given up when this many env runners above suspicion have failed with it: one may be a coincidence.
MAX_LOSSES_ALONE = 2


@dataclass(slots=True, eq=False)
class AskedQuestion:
    """A question that was asked and not collected yet.

    Attributes:
        num_raised: how often it raised.
        num_lost: how often an env runner failed with it in flight, or forgot it.
        num_lost_alone: how often an env runner above suspicion failed while it had only this question.
        result: what was sampled, if it was.
        cause: why the question was given up, if it was.
    """

    ref: QuestionRef
    num_raised: int = 0
    num_lost: int = 0
    num_lost_alone: int = 0
    result: SampledQuestion | None = None
    cause: str | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be the cause of the failures of env runners."""
        return self.num_lost >= MAX_LOSSES

    @property
    def has_ended(self) -> bool:
        return self.result is not None or self.cause is not None

    def give_up(self, cause: str) -> None:
        logger.error("The %s is given up: %s", self.ref, cause)
        self.cause = cause


class QuestionQueue:
    """All questions that were asked and not collected yet, in the order in which they are handed out.

    Attributes:
        waiting: the questions that no env runner has.
        suspects: those of them that must be asked alone.
    """

    def __init__(self) -> None:
        self._asked: dict[QuestionRef, AskedQuestion] = {}
        self.waiting: deque[AskedQuestion] = deque()
        self.suspects: deque[AskedQuestion] = deque()

    def ask(self, refs: Sequence[QuestionRef]) -> None:
        """Queues questions; those for evaluation go before all that are waiting."""
        new = [AskedQuestion(ref) for ref in refs]
        self._asked |= {question.ref: question for question in new}
        first = [question for question in new if question.ref.purpose == Purpose.EVALUATION]
        last = [question for question in new if question.ref.purpose == Purpose.TRAINING]
        self.waiting = deque([*first, *self.waiting, *last])

    def have_ended(self, refs: Sequence[QuestionRef]) -> bool:
        return all(self._asked[ref].has_ended for ref in refs)

    def pop(self, refs: Sequence[QuestionRef]) -> list[AskedQuestion]:
        return [self._asked.pop(ref) for ref in refs]

    def num_missing(self) -> int:
        return sum(not question.has_ended for question in self._asked.values())

    def clear(self) -> None:
        for container in (self._asked, self.waiting, self.suspects):
            container.clear()

    def put_back(self, questions: Sequence[AskedQuestion]) -> None:
        """Queues lost questions before all others; those that were lost repeatedly will be asked alone."""
        for question in questions:
            question.num_lost += 1
        self.waiting.extendleft(reversed([question for question in questions if not question.is_suspect]))
        self.suspects.extend(question for question in questions if question.is_suspect)

    def put_back_raised(self, question: AskedQuestion, failure: Failure) -> None:
        """Queues a question that raised before all others, unless it would raise again or has raised too often."""
        question.num_raised += 1
        if failure.retry and question.num_raised < MAX_RAISES:
            (self.suspects if question.is_suspect else self.waiting).appendleft(question)
        else:
            question.give_up(failure.message)
