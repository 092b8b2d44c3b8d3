"""Prints a line of at most 100 characters for each training iteration and each evaluation, and warnings."""

import logging
import re
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from ray import tune
from ray.air.constants import TRAINING_ITERATION
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EPISODE_RETURN_MEAN,
    EVALUATION_RESULTS,
    NUM_EPISODES,
    TIMERS,
)

from rllib_arpo.core.metric import number_at
from rllib_arpo.rollout.metric_table import ROLLOUT_METRICS
from rllib_arpo.terminal import WARNING_FORMAT, open_terminal, printable, say, say_once

#: Key of a result: the messages since the previous result, by number, because Tune's loggers take no lists of texts.
MESSAGES = "messages"
#: A result has at most this many messages, the last ones.
MAX_MESSAGES = 50
#: Keys below `timers/` in the result.
ROLLOUT_TIMER, UPDATE_TIMER, SYNC_TIMER = "rollout", "update", "sync"
#: Their labels on the line.
TIMER_LABELS = {ROLLOUT_TIMER: "roll", UPDATE_TIMER: "upd", SYNC_TIMER: "sync"}
#: The metrics on the line: name -> label and format.
SHOWN = {metric.name: metric.console for metric in ROLLOUT_METRICS if metric.console}
MISSING = "-"
#: Begins the messages that were logged, as `WARNING_FORMAT` writes them.
_LOGGED = re.compile(r"[A-Z]+ rllib_arpo: ")


class ConsoleCallback(tune.Callback):
    """Prints the lines of a run in the driver: `tune.run("ARPO", config=config, callbacks=[ConsoleCallback()])`."""

    def on_trial_result(self, *, result: dict[str, Any], **_info: Any) -> None:
        say_result(result)


def say_result(result: Mapping[str, Any]) -> None:
    """Prints an iteration's warnings (each once in a run), its evaluation, and its line."""
    for message in result.get(MESSAGES, {}).values():
        # Where no terminal of a run is open, the process that logged a warning has printed it (`Messages`).
        if open_terminal() is not None or not _LOGGED.match(message):
            say_once(message)
    if EVALUATION_RESULTS in result:
        say(evaluation_line(result[EVALUATION_RESULTS]))
    say(training_line(result))


class Messages(logging.Handler):
    """Keeps the package's warnings until the next result takes them.

    It also prints them to standard error, unless the user has set up logging or the terminal of a run shows them.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(WARNING_FORMAT))
        self._lines: deque[str] = deque(maxlen=MAX_MESSAGES)

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.add(line)
        if not logging.root.handlers and open_terminal() is None:
            print(printable(line), file=sys.stderr, flush=True)

    def add(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        """The lines since the last call."""
        taken = list(self._lines)
        for _ in taken:
            self._lines.popleft()
        return taken


def training_line(result: Mapping[str, Any]) -> str:
    """A line like "iter   12  reward  0.412  acc 0.38  tools 1.9  dH +0.031  forks  6.2  roll 12.3 upd 8.1 sync 0.3 s".

    It has the metrics with a `Metric.console`, and the seconds of rollout, update and weight sync. A value that is
    missing or not a number appears as "-".
    """
    seconds = " ".join(f"{label} {_seconds(number_at(result, TIMERS, key))}" for key, label in TIMER_LABELS.items())
    return "  ".join(
        [
            f"iter {_format(number_at(result, TRAINING_ITERATION), '4.0f')}",
            *(f"{label} {_rollout(result, name, spec)}" for name, (label, spec) in SHOWN.items()),
            f"{seconds} s",
        ]
    )


def evaluation_line(metrics: Mapping[str, Any]) -> str:
    """A line like "evaluation  accuracy 0.550  format 0.980  reward  0.560  60 questions"."""
    return "  ".join(
        [
            "evaluation",
            f"accuracy {_rollout(metrics, 'accuracy', '5.3f')}",
            f"format {_rollout(metrics, 'format_valid', '5.3f')}",
            f"reward {_rollout(metrics, EPISODE_RETURN_MEAN, '6.3f')}",
            f"{_rollout(metrics, NUM_EPISODES, '1.0f')} questions",
        ]
    )


def _rollout(result: Mapping[str, Any], path: str, spec: str) -> str:
    return _format(number_at(result, ENV_RUNNER_RESULTS, path), spec)


def _format(value: float | None, spec: str) -> str:
    width = spec.lstrip("+").split(".")[0]
    return f"{MISSING:>{width}}" if value is None else format(value, spec)


def _seconds(value: float | None) -> str:
    return _format(value, "1.1f" if value is None or value < 100 else "1.0f")
