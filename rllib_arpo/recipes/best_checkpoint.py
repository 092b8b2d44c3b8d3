"""Keeps the best checkpoint of a Tune run beside the last ones."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.air.constants import TRAINING_ITERATION
from ray.tune import Callback
from ray.tune.experiment import Trial

from rllib_arpo.core.results import number_at
from rllib_arpo.files import replace_file

#: A link in the experiment's folder to the folder of the best checkpoint.
BEST = "best_checkpoint"
#: File in that folder: its iteration and its value.
SCORE = "score.json"


class KeepBestCheckpoint(Callback):
    """Keeps the checkpoint with the largest value of a metric, where Tune keeps the last ones (`num_to_keep`).

    With a score, Tune itself would keep the best ones and only one of the last. Files are linked where the disk can do
    that, and otherwise copied. Checkpoints of iterations without the metric do not count; of equal ones the last does.

    Args:
        metric: its place in the result, such as "env_runners/episode_return_mean".
    """

    def __init__(self, metric: str):
        self.metric = metric

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        value = number_at(trial.last_result, self.metric)
        checkpoint = Path(trial.checkpoint.path)
        experiment = checkpoint.parents[1]
        known = read_score(experiment)
        if value is None or (known is not None and value < known["value"]):
            return
        score = {"iteration": trial.last_result[TRAINING_ITERATION], "metric": self.metric, "value": value}
        _keep(checkpoint, experiment, score)


def read_score(experiment: Path) -> dict[str, Any] | None:
    """{"iteration", "metric", "value"} of the best checkpoint; None if there is none yet."""
    path = experiment / BEST / SCORE
    return json.loads(path.read_text()) if path.is_file() else None


def _keep(checkpoint: Path, experiment: Path, score: Mapping[str, Any]) -> None:
    """Makes `checkpoint` the best one: its files first, the link to them at once, so that a kill leaves one of both."""
    # A new name: a resumed run may have the best one in the same iteration again.
    folder = Path(tempfile.mkdtemp(prefix=f"{BEST}_{score['iteration']:06d}_", dir=experiment))
    shutil.copytree(checkpoint, folder, copy_function=_link, dirs_exist_ok=True)
    (folder / SCORE).write_text(json.dumps(score))
    with replace_file(experiment / BEST) as link:
        link.symlink_to(folder.name)
    for other in experiment.glob(f"{BEST}_*"):
        if other != folder:
            shutil.rmtree(other)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
