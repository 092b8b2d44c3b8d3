"""One line on the console per training iteration and per evaluation, at most 100 columns wide; warnings."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any

from ray.air.constants import TRAINING_ITERATION
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, NUM_EPISODES, TIMERS

from rllib_arpo.core.results import number_at
from rllib_arpo.terminal import WARNING_FORMAT

logger = logging.getLogger("rllib_arpo")

#: The beginnings of `training_line` and `evaluation_line`.
LINE = re.compile(r"iter +(?P<iteration>\d+)  reward |evaluation  accuracy ")
#: Keys below "timers" of the parts of an iteration, in seconds -> their labels on the line.
TIMER_LABELS = {"rollout": "roll", "update": "upd", "sync": "sync"}
MISSING = "-"


class ConsoleCallback(RLlibCallback):
    """Prints the lines where the Algorithm lives: the driver, or a Tune trial, whose output Ray forwards.

    There and in the env runners it also prints the package's warnings.
    """

    def __init__(self) -> None:
        super().__init__()
        print_warnings()

    def on_train_result(self, *, result: dict, **kwargs: Any) -> None:
        print(training_line(result), flush=True)

    def on_evaluate_end(self, *, evaluation_metrics: dict, **kwargs: Any) -> None:
        print(evaluation_line(evaluation_metrics), flush=True)


def print_warnings() -> None:
    """Prints what the package logs, as long as the user has not set up logging."""
    if not logger.handlers:
        logger.addHandler(_WarningsPrinter())


class _WarningsPrinter(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(WARNING_FORMAT))
        self.addFilter(lambda _record: not logging.root.handlers)

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def training_line(result: Mapping[str, Any]) -> str:
    """E.g. "iter   12  reward  0.412  acc 0.38  tools 1.9  dH +0.031  forks  6.2  roll 12.3 upd 8.1 sync 0.3 s".

    The mean reward and the accuracy per trajectory, tool calls per trajectory, the rise dH of the entropy after a
    tool response (normalised), forks per question, and the seconds of rollout, update and weight sync. Missing values,
    and values that are not numbers, appear as "-".
    """
    seconds = " ".join(f"{label} {_seconds(number_at(result, TIMERS, key))}" for key, label in TIMER_LABELS.items())
    return "  ".join(
        [
            f"iter {_format(number_at(result, TRAINING_ITERATION), '4.0f')}",
            f"reward {_rollout(result, EPISODE_RETURN_MEAN, '6.3f')}",
            f"acc {_rollout(result, 'accuracy', '4.2f')}",
            f"tools {_rollout(result, 'tool_calls_per_trajectory', '3.1f')}",
            f"dH {_rollout(result, 'entropy/delta', '+6.3f')}",
            f"forks {_rollout(result, 'forks_per_question', '4.1f')}",
            f"{seconds} s",
        ]
    )


def evaluation_line(metrics: Mapping[str, Any]) -> str:
    """E.g. "evaluation  accuracy 0.550  format 0.980  reward  0.560  60 questions"."""
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
