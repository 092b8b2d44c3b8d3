"""Shows the progress within an iteration: questions done, tokens per second, forks, tools in flight."""

import sys
import time
from collections.abc import Callable

from ray.experimental import tqdm_ray

#: How progress is shown: by Ray's distributed tqdm, whose bars the driver draws; by short lines, for log files; not.
BAR, LINES, OFF = "bar", "lines", "off"
#: Mode -> seconds between two updates of the display.
INTERVALS_S = {BAR: 0.5, LINES: 15.0, OFF: float("inf")}


def progress_mode() -> str:
    """A bar on a terminal, and lines elsewhere. A remote env runner sees no terminal: ask in the driver."""
    return BAR if sys.stdout.isatty() and sys.stderr.isatty() else LINES


class RolloutProgress:
    """Shows how far a rollout is; `update` costs a few additions, the display is rate-limited.

    Args:
        label: the text in front of the bar, e.g. "rollout" or "evaluation".
        mode: a key of `INTERVALS_S`.
        clock: seconds; for tests.
    """

    def __init__(self, label: str, mode: str, clock: Callable[[], float] = time.monotonic):
        self.label = label
        self._mode, self._interval_s = mode, INTERVALS_S[mode]
        self._clock = clock
        self._is_open = False
        self._bar: tqdm_ray.tqdm | None = None
        self.total_questions = self.questions = self.tokens = self.forks = self.tools = 0

    def begin(self, num_questions: int, label: str | None = None) -> None:
        """Adds new questions to the running ones; if none is running, `label` replaces the label."""
        if self._is_open:
            self.total_questions += num_questions
            return
        self.label = label or self.label
        self.total_questions = num_questions
        self.questions = self.tokens = self.forks = 0
        self._started = self._last_shown = self._clock()
        self._is_open = True
        if self._mode == BAR:
            # This class limits the rate itself: tqdm_ray's own limit would suppress the count behind the description.
            self._bar = tqdm_ray.tqdm(desc=self.label, total=num_questions, unit="questions", flush_interval_s=0)
            self._bar.refresh()

    def end(self) -> None:
        """Ends the display; can be called twice."""
        self._is_open = False
        bar, self._bar = self._bar, None
        if bar is not None:
            self._move(bar)
            bar.close()

    def update(self, questions: int = 0, tokens: int = 0, forks: int = 0, tools: int = 0) -> None:
        """Adds what has happened since the last call; `tools`: how many began, minus how many answered."""
        self.questions += questions
        self.tokens += tokens
        self.forks += forks
        self.tools += tools
        # Another thread may call `end` meanwhile.
        bar, now = self._bar, self._clock()
        if not self._is_open or now - self._last_shown < self._interval_s:
            return
        self._last_shown = now
        if bar is not None:
            self._move(bar)
        elif self._mode == LINES:
            print(f"{self.label}: {self.questions}/{self.total_questions} questions, {self.rates()}", flush=True)

    def rates(self) -> str:
        """E.g. "571 tok/s, 12 forks, 3 tools in flight"."""
        seconds = self._clock() - self._started
        speed = self.tokens / seconds if seconds > 0 else 0
        return f"{speed:.0f} tok/s, {self.forks} forks, {self.tools} tools in flight"

    def _move(self, bar: tqdm_ray.tqdm) -> None:
        bar.total, bar.n = self.total_questions, self.questions
        bar.set_description(f"{self.label} ({self.rates()})")
