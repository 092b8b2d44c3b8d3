"""The folder for a run's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow.fs import LocalFileSystem

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm


def trial_folder(algorithm: Algorithm) -> Path:
    """The folder of Tune's results of the trial, if it is local; otherwise the algorithm's own log folder.

    `algorithm.logdir` is, under Tune, a working directory that is not kept with the results.
    """
    storage = algorithm._storage
    if storage is not None and isinstance(storage.storage_filesystem, LocalFileSystem):
        folder = Path(storage.trial_fs_path)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(algorithm.logdir)
