"""Whole copies of the files from which Tune resumes a run.

Tune writes these files over and over in place. If a kill leaves a part of one, Tune logs the error and begins the run
anew (`TuneController.__init__`).
"""

from __future__ import annotations

import json
import pickletools
from collections import deque
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

#: Of each kind Tune reads the last one by name; each session of a run writes its own.
KINDS = ("tuner.pkl", "experiment_state-*.json", "basic-variant-state-*.json", "callback-states-*.pkl")
#: The folder of the copies, in that of the run.
COPIES = "state"


class KeepState(Callback):
    """Copies the files of a run whenever Tune has written them."""

    def __init__(self) -> None:
        self._written: dict[Path, int] = {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if trials:
            self.keep(Path(trials[0].storage.experiment_fs_path))

    def keep(self, run: Path) -> None:
        """Copies what is new, and whole, in the folder of a run."""
        for kind in KINDS:
            for path in run.glob(kind):
                written = path.stat().st_mtime_ns
                if self._written.get(path) == written:
                    continue
                content = path.read_bytes()
                if is_whole(path, content):
                    (run / COPIES).mkdir(exist_ok=True)
                    _replace(run / COPIES / path.name, content)
                    self._written[path] = written


def mend_state(run: Path) -> None:
    """Puts copies in the place of files that are not whole; removes those that have none, so that older ones count.

    Raises:
        ValueError: of a kind nothing is left.
    """
    for kind in KINDS:
        damaged = None
        for path in sorted(run.glob(kind), reverse=True):
            if is_whole(path, path.read_bytes()):
                break
            damaged, copy = path, run / COPIES / path.name
            if copy.is_file():
                _replace(path, copy.read_bytes())
                break
            path.unlink()
        else:
            if damaged is not None:
                raise ValueError(f"{damaged}: the run was killed while Tune wrote this file first; begin a new run.")


def is_whole(path: Path, content: bytes) -> bool:
    """Whether a JSON document, or a pickle, ends where this content of a file ends; runs nothing of the pickle."""
    is_json = path.name.startswith("experiment_state")
    try:
        json.loads(content) if is_json else deque(pickletools.genops(content), maxlen=0)
    except ValueError:
        return False
    return True


def _replace(path: Path, content: bytes) -> None:
    """Writes a file in one step."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
