"""Where the files of a run belong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow.fs import LocalFileSystem

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm


def trial_folder(algorithm: Algorithm) -> Path:
    """Where Tune's results of the trial lie, if that is a local folder; else the algorithm's own log folder.

    `algorithm.logdir` is, under Tune, a working directory that is not kept with the results.
    """
    storage = algorithm._storage
    if storage is not None and isinstance(storage.storage_filesystem, LocalFileSystem):
        folder = Path(storage.trial_fs_path)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(algorithm.logdir)
