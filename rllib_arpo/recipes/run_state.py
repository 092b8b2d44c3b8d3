"""Whole copies of the files from which Tune resumes a run.

Tune writes these files over and over in place. If a kill leaves a part of one, Tune logs the error and begins the run
anew (`TuneController.__init__`); to a part of the results it appends the next ones.
"""

from __future__ import annotations

import json
import pickletools
from collections import deque
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from rllib_arpo.files import replace_file

#: Of each kind Tune reads the last one by name; each session of a run writes its own.
KINDS = ("tuner.pkl", "experiment_state-*.json", "basic-variant-state-*.json", "callback-states-*.pkl")
#: The results of the trials, a line an iteration; Tune appends to what lies here when a run resumes.
RESULTS = "*/result.json"
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
        for kind in (*KINDS, RESULTS):
            for path in run.glob(kind):
                written = path.stat().st_mtime_ns
                if self._written.get(path) == written:
                    continue
                content, copy = path.read_bytes(), _copy_of(run, path)
                # Results only get longer, and a part of a file is shorter.
                is_good = len(content) >= _size(copy) if kind == RESULTS else is_whole(path, content)
                if is_good:
                    _replace(copy, content)
                    self._written[path] = written


def mend_state(run: Path) -> None:
    """Puts copies in the place of files that are not whole; removes those that have none, so that older ones count.

    Raises:
        ValueError: of a kind nothing is left.
    """
    for kind in KINDS:
        without_copy = []
        for path in sorted(run.glob(kind), reverse=True):
            if not is_whole(path, path.read_bytes()):
                if not _copy_of(run, path).is_file():
                    without_copy.append(path)
                    continue
                _replace(path, _copy_of(run, path).read_bytes())
            for newer in without_copy:
                newer.unlink()
            break
        else:
            if without_copy:
                raise ValueError(f"{without_copy[0]}: a kill has left a part of this file; begin a new run.")
    for path in run.glob(RESULTS):
        copy = _copy_of(run, path)
        content = max(path.read_bytes(), copy.read_bytes() if copy.is_file() else b"", key=len)
        _replace(path, content[: content.rfind(b"\n") + 1])


def is_whole(path: Path, content: bytes) -> bool:
    """Whether a JSON document, or a pickle, ends where this content of a file ends; runs nothing of the pickle."""
    is_json = path.name.startswith("experiment_state")
    try:
        json.loads(content) if is_json else deque(pickletools.genops(content), maxlen=0)
    except ValueError:
        return False
    return True


def _copy_of(run: Path, path: Path) -> Path:
    return run / COPIES / path.relative_to(run)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as new:
        new.write_bytes(content)
