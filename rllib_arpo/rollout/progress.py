"""The progress bar within an iteration: questions done, tokens per second, forks, tools in flight."""

import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

import ray
from ray.experimental import tqdm_ray

#: Asks for a mode in this process and in the Ray workers that inherit its environment.
PROGRESS_VARIABLE = "RLLIB_ARPO_PROGRESS"
BAR_INTERVAL_S = 0.5
LINE_INTERVAL_S = 15.0


def progress_mode(requested: str | None = None) -> str:
    """The form in which to show progress: "bar", "lines" or "off".

    `requested` if given; otherwise the environment variable RLLIB_ARPO_PROGRESS; otherwise "bar" on a terminal and
    "off" elsewhere. A Ray worker sees no terminal: ask in the driver, and hand the answer to
    `RolloutProgress(enabled=)`.

    Raises:
        ValueError: another word was requested.
    """
    requested = requested or os.environ.get(PROGRESS_VARIABLE)
    if requested is None:
        return "bar" if sys.stdout.isatty() and sys.stderr.isatty() else "off"
    if requested not in DISPLAYS:
        raise ValueError(f"progress must be one of {sorted(DISPLAYS)}, not {requested!r}")
    return requested


class RolloutProgress:
    """Shows how far a rollout is; `update` costs a few additions, the display is rate-limited.

    Args:
        label: in front of the bar, e.g. "rollout" or "evaluation".
        enabled: False for nothing, True for what `progress_mode()` says here, or a mode's name.
        clock: seconds; for tests.

    ```python
    bar = RolloutProgress("rollout")
    bar.begin(8)
    bar.update(tokens=120, tools=1)
    bar.update(questions=1, forks=3, tools=-1)
    bar.end()
    ```
    """

    def __init__(
        self,
        label: str,
        enabled: bool | str = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        mode = progress_mode(enabled if isinstance(enabled, str) else None) if enabled else "off"
        self.label = label
        self._clock = clock
        self._display = DISPLAYS[mode]
        self._open: Display | None = None
        self.total_questions = self.questions = self.tokens = self.forks = self.tools = 0

    def begin(self, num_questions: int, label: str | None = None) -> None:
        """Adds questions that begin to those that are still running; if there are none, `label` replaces the label."""
        if self._open is not None:
            self.total_questions += num_questions
            return
        self.label = label or self.label
        self.total_questions = num_questions
        self.questions = self.tokens = self.forks = 0
        self._started = self._last_shown = self._clock()
        self._open = self._display(self)

    def end(self) -> None:
        """Removes the display; can be called twice."""
        if self._open is not None:
            self._open.close(self)
            self._open = None

    def update(self, questions: int = 0, tokens: int = 0, forks: int = 0, tools: int = 0) -> None:
        """Adds what has happened since the last call; `tools`: those that began, less those that answered."""
        self.questions += questions
        self.tokens += tokens
        self.forks += forks
        self.tools += tools
        display, now = self._open, self._clock()
        # Another thread may have called `end` meanwhile.
        if display is not None and now - self._last_shown >= display.interval_s:
            self._last_shown = now
            display.show(self)

    def rates(self) -> str:
        """E.g. "571 tok/s, 12 forks, 3 tools in flight"."""
        seconds = self._clock() - self._started
        speed = self.tokens / seconds if seconds > 0 else 0
        return f"{speed:.0f} tok/s, {self.forks} forks, {self.tools} tools in flight"


class Display(Protocol):
    """Made when the rollout begins; `show` is called at most once in `interval_s` seconds."""

    interval_s: float

    def __init__(self, progress: RolloutProgress): ...
    def show(self, progress: RolloutProgress) -> None: ...
    def close(self, progress: RolloutProgress) -> None: ...


class NoDisplay:
    interval_s = float("inf")

    def __init__(self, progress: RolloutProgress):
        pass

    def show(self, progress: RolloutProgress) -> None:
        pass

    def close(self, progress: RolloutProgress) -> None:
        pass


class LineDisplay(NoDisplay):
    """One short line every 15 seconds, for log files."""

    interval_s = LINE_INTERVAL_S

    def show(self, progress: RolloutProgress) -> None:
        done = f"{progress.questions}/{progress.total_questions} questions"
        print(f"{progress.label}: {done}, {progress.rates()}", flush=True)


class RayBar:
    """Ray's distributed tqdm: bars of remote env runners and of the driver are drawn by the driver."""

    interval_s = BAR_INTERVAL_S

    def __init__(self, progress: RolloutProgress):
        # This class limits the rate itself: tqdm_ray's own limit would suppress the count behind the description.
        self._bar = tqdm_ray.tqdm(
            desc=progress.label, total=progress.total_questions, unit="questions", flush_interval_s=0
        )
        self._bar.refresh()

    def show(self, progress: RolloutProgress) -> None:
        self._bar.total = progress.total_questions
        self._bar.n = progress.questions
        self._bar.set_description(f"{progress.label} ({progress.rates()})")

    def close(self, progress: RolloutProgress) -> None:
        self.show(progress)
        self._bar.close()


class LocalBar:
    """Plain tqdm, for a process without Ray. The bar vanishes when the rollout is done."""

    interval_s = BAR_INTERVAL_S

    def __init__(self, progress: RolloutProgress):
        from tqdm import tqdm

        self._bar = tqdm(desc=progress.label, total=progress.total_questions, unit="questions", leave=False)

    def show(self, progress: RolloutProgress) -> None:
        self._bar.total = progress.total_questions
        self._bar.n = progress.questions
        self._bar.set_postfix_str(progress.rates())

    def close(self, progress: RolloutProgress) -> None:
        self.show(progress)
        self._bar.close()


def _bar(progress: RolloutProgress) -> Display:
    return RayBar(progress) if ray.is_initialized() else LocalBar(progress)


DISPLAYS: dict[str, Callable[[RolloutProgress], Display]] = {"bar": _bar, "lines": LineDisplay, "off": NoDisplay}
