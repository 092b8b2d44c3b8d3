"""Shows on the terminal of a run what Ray's workers print for it; Ray prints their other lines, into the log."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ray._private.ray_logging import global_worker_stdstream_dispatcher
from ray.air.constants import TRAINING_ITERATION
from ray.experimental.tqdm_ray import RAY_TQDM_MAGIC

from rllib_arpo.rollout import progress
from rllib_arpo.terminal import RunTerminal, open_terminal
from rllib_arpo.tracking import console

#: Ray's name of its handler, which prints all lines and is removed when the driver leaves the cluster.
RAYS_HANDLER = "ray_print_logs"
#: As `terminal.WARNING_FORMAT` begins.
WARNING = re.compile(r"(WARNING|ERROR|CRITICAL) rllib_arpo: ")
#: Seconds in which the last lines of a run come; on a busy machine Ray takes many.
PATIENCE_S = 30.0
#: The row of the live view until the first rollout.
START = "start"


def listen() -> WorkerLines | None:
    """Listens to the workers from now on; None: there is no terminal of a run, or Ray does not forward their output."""
    terminal = open_terminal()
    rays = dict(global_worker_stdstream_dispatcher.handlers).get(RAYS_HANDLER)
    if terminal is None or rays is None:
        return None
    lines = WorkerLines(terminal)
    global_worker_stdstream_dispatcher.remove_handler(RAYS_HANDLER)
    global_worker_stdstream_dispatcher.add_handler(RAYS_HANDLER, partial(lines.take, rays))
    terminal.show(START, "starting")
    return lines


class WorkerLines:
    """Picks the lines of `ConsoleCallback` and of the progress displays, and the package's warnings."""

    def __init__(self, terminal: RunTerminal):
        self._terminal = terminal
        self._iteration = 0
        #: Whether lines that come now are too late.
        self._ended = False
        #: Those in the live view -> whether they are closed.
        self._bars: dict[str, bool] = {}
        self._came = threading.Condition()

    def take(self, rays: Callable[[dict[str, Any]], None], data: dict[str, Any]) -> None:
        """Takes some lines of one worker; gives Ray those that are not for the terminal."""
        is_open = open_terminal() is self._terminal and not self._ended
        others = [line for line in data.get("lines", ()) if not (is_open and self._show(line))]
        if others:
            rays({**data, "lines": others})

    def wait_for(self, result: Mapping[str, Any]) -> None:
        """Waits for the line of the last iteration; if Ray has lost it, shows it from the result, and no later line."""
        with self._came:
            came = self._came.wait_for(lambda: self._iteration >= result.get(TRAINING_ITERATION, 0), PATIENCE_S)
            self._ended = not came
        if not came:
            self._terminal.say(console.training_line(result))

    def _show(self, line: str) -> bool:
        if RAY_TQDM_MAGIC in line:
            return self._terminal.live and self._show_bar(line)
        if WARNING.match(line):
            self._terminal.warn(line)
        elif found := console.LINE.match(line):
            self._terminal.hide_all()
            self._bars.clear()
            self._terminal.say(line)
            with self._came:
                self._iteration = max(self._iteration, int(found["iteration"] or 0))
                self._came.notify_all()
        elif progress.LINE.match(line):
            self._terminal.say(line)
        else:
            return False
        return True

    def _show_bar(self, line: str) -> bool:
        """A bar that is closed stays until the next line, which comes after the update, or until the next bar.

        Returns:
            False: another thread of the worker has printed into the line.
        """
        try:
            bar = json.loads(line)
            name, row = bar["uuid"], (bar["desc"], bar["x"], bar["total"], bar["unit"])
            is_closed = bar["closed"]
        except (ValueError, KeyError, TypeError):
            return False
        if is_closed and name not in self._bars:
            return True  # The line was faster.
        if name not in self._bars:
            for other in [START, *(other for other, has_ended in self._bars.items() if has_ended)]:
                self._terminal.hide(other)
                self._bars.pop(other, None)
        self._bars[name] = is_closed
        self._terminal.show(name, *row)
        return True
