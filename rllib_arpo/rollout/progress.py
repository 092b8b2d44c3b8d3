"""Prints the progress within an iteration: questions done, tokens per second, forks, tools in flight."""

import time
from collections.abc import Callable

#: Seconds between two lines.
INTERVAL_S = 15.0


class RolloutProgress:
    """Prints a line now and then while a rollout runs; `update` costs a few additions.

    Args:
        label: the beginning of a line, e.g. "rollout" or "evaluation".
        is_shown: whether it prints at all.
        clock: seconds; for tests.
    """

    def __init__(self, label: str, is_shown: bool = True, clock: Callable[[], float] = time.monotonic):
        self.label = label
        self._is_shown = is_shown
        self._clock = clock
        self._is_open = False
        self._weights: int | None = None
        self.total_questions = self.questions = self.tokens = self.forks = self.tools = 0

    def begin(self, num_questions: int, label: str | None = None, weights: int | None = None) -> None:
        """Adds new questions.

        With a new label, new `weights` or after `end` it begins at 0; unfinished questions stay in the total.

        Args:
            weights: their version.
        """
        rollout = label or self.label, weights
        if self._is_open and rollout == (self.label, self._weights):
            self.total_questions += num_questions
            return
        self.label, self._weights = rollout
        self.total_questions += num_questions - self.questions
        self.questions = self.tokens = self.forks = 0
        self._started = self._last_shown = self._clock()
        self._is_open = self._is_shown

    def end(self) -> None:
        """Forgets the questions left, and prints nothing until the next `begin`; can be called twice."""
        self._is_open = False
        self.total_questions = self.questions

    def update(self, questions: int = 0, tokens: int = 0, forks: int = 0, tools: int = 0) -> None:
        """Adds what has happened since the last call; `tools`: how many began, minus how many answered."""
        self.questions += questions
        self.tokens += tokens
        self.forks += forks
        self.tools += tools
        now = self._clock()
        if not self._is_open or now - self._last_shown < INTERVAL_S:
            return
        self._last_shown = now
        speed = self.tokens / (now - self._started)
        print(
            f"{self.label}: {self.questions}/{self.total_questions} questions, {speed:.0f} tok/s, {self.forks} forks, "
            f"{self.tools} tools in flight",
            flush=True,
        )
