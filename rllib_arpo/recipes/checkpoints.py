"""The checkpoints of a recipe's run: which are whole, which is the best, and where a resumed run goes on.

A run's folder holds the trial's folder (`TRIAL`) with Tune's last checkpoints, and beside it the best checkpoint and
the one at which the run went on last.
"""

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray.air.constants import EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE, TRAINING_ITERATION
from ray.tune import Callback
from ray.tune.experiment import Trial

from rllib_arpo.core.metric import number_at
from rllib_arpo.envs.support.data_files import parse_json
from rllib_arpo.files import check_all_files, replace_file, write_json
from rllib_arpo.terminal import say

#: The trial's folder in the folder of a run; a resumed run keeps it.
TRIAL = "trial"
#: A link in the run's folder to the folder of the best checkpoint.
BEST = "best_checkpoint"
#: The beginning of the name of the checkpoint at which a run went on.
RESUMED = "resumed_at"
#: File in the folder of the best checkpoint, with its iteration and its value.
SCORE = "score.json"
#: File in a checkpoint whose other files are complete, with its iteration.
WHOLE = "whole.json"


class KeepCheckpoints(Callback):
    """Marks whole checkpoints, and keeps the one with the largest value of a metric beside the last ones.

    With a score, Tune would keep the best checkpoints and only one of the last. Files are linked if the disk can do
    that, otherwise copied. A checkpoint of an iteration without the metric does not count, and the last of equal ones
    wins.

    Args:
        metric: where it is in the result, such as "env_runners/episode_return_mean".
    """

    def __init__(self, metric: str):
        self.metric = metric
        self._trial: Trial | None = None

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._trial = trial

    def interrupt(self) -> None:
        """Saves the results of a run that is about to end."""
        if self._trial is not None:
            _save_results(self._trial, Path(self._trial.path))

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        checkpoint = Path(trial.checkpoint.path)
        iteration = trial.last_result[TRAINING_ITERATION]
        _save_results(trial, checkpoint.parent)
        mark_whole(checkpoint, iteration)
        value = number_at(trial.last_result, self.metric)
        run = checkpoint.parents[1]
        known = read_score(run)
        if value is None or (known is not None and value < known["value"]):
            return
        _keep(checkpoint, run, {"iteration": iteration, "metric": self.metric, "value": value})


def mark_whole(checkpoint: Path, iteration: int) -> None:
    write_json(checkpoint / WHOLE, {"iteration": iteration})


def iteration_of(checkpoint: Path) -> int | None:
    """The iteration of a complete checkpoint; None if a kill left only a part of it."""
    try:
        return int(json.loads((checkpoint / WHOLE).read_text())["iteration"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def last_iteration(run: Path) -> int:
    """The iteration of a run's newest whole checkpoint; 0 if there is none."""
    return max(_iterations(_checkpoints(run)).values(), default=0)


def _checkpoints(run: Path) -> list[Path]:
    return [*run.glob(f"{TRIAL}/checkpoint_*"), *run.glob(f"{RESUMED}_*")]


def _iterations(checkpoints: Iterable[Path]) -> dict[Path, int]:
    """Of the whole ones."""
    return {path: number for path in checkpoints if (number := iteration_of(path)) is not None}


def take_newest(run: Path) -> Path:
    """Prepares a run to go on: moves its newest whole checkpoint out of Tune's way, and returns it.

    Tune numbers the checkpoints from 0 again, so all of them leave the trial's folder. The trial's error is removed,
    and so are the results of later iterations, which the run makes again. Whenever a kill comes, the next call finds
    the checkpoint.

    Raises:
        ValueError: no checkpoint is complete and undamaged.
        DataError: a row of the results is damaged.
    """
    found = _checkpoints(run)
    iterations = _iterations(found)
    newest = next(filter(_has_its_files, sorted(iterations, key=iterations.__getitem__, reverse=True)), None)
    if newest is None:
        raise ValueError(f"{run}: no checkpoint is whole. Nothing was removed; --output names another folder.")
    taken = run / f"{RESUMED}_{iterations[newest]:06d}"
    if newest != taken:
        shutil.rmtree(taken, ignore_errors=True)  # A part of one.
        newest.rename(taken)
    for other in found:
        if other not in (newest, taken):
            shutil.rmtree(other)
    _cut_results(run / TRIAL, iterations[newest])
    for error in run.glob(f"{TRIAL}/error.*"):
        error.unlink()
    return taken


def _has_its_files(checkpoint: Path) -> bool:
    try:
        check_all_files(checkpoint)
    except (ValueError, OSError) as error:
        say(f"{checkpoint.name} is left out: {error}")
        return False
    return True


def read_score(run: Path) -> dict[str, Any] | None:
    """{"iteration", "metric", "value"} of the best checkpoint; None if there is none yet."""
    path = run / BEST / SCORE
    return json.loads(path.read_text()) if path.is_file() else None


def _save_results(trial: Trial, folder: Path) -> None:
    """Copies the results so far into the trial's folder. Tune does so now and then, and a kill would lose the rest."""
    for name in (EXPR_PARAM_FILE, EXPR_RESULT_FILE, EXPR_PROGRESS_FILE):
        written = Path(trial.local_path or folder, name)
        if written.is_file():
            with replace_file(folder / name) as file:
                shutil.copyfile(written, file)


def _cut_results(trial: Path, iteration: int) -> None:
    """Removes the results after an iteration, and the part of a row that a kill may have left."""
    path, progress = trial / EXPR_RESULT_FILE, trial / EXPR_PROGRESS_FILE
    if not path.is_file():
        return
    rows = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    numbers = [parse_json(row, f"{path}, row {i}")[TRAINING_ITERATION] for i, row in enumerate(rows)]
    kept = [row for row, number in zip(rows, numbers, strict=True) if number <= iteration]
    with replace_file(path) as file:
        file.write_bytes(b"".join(kept))
    if progress.is_file():
        with progress.open(newline="") as old, replace_file(progress) as file, file.open("w", newline="") as new:
            csv.writer(new).writerows(list(csv.reader(old))[: 1 + len(kept)])


def _keep(checkpoint: Path, run: Path, score: Mapping[str, Any]) -> None:
    """Makes `checkpoint` the best one. The link changes in one step, so a kill leaves the old one or the new one."""
    # The name is new because a resumed run may find the best one in the same iteration again.
    folder = Path(tempfile.mkdtemp(prefix=f"{BEST}_{score['iteration']:06d}_", dir=run))
    shutil.copytree(checkpoint, folder, copy_function=_link, dirs_exist_ok=True)
    (folder / SCORE).write_text(json.dumps(score))
    new = run / f"{BEST}.new"
    new.unlink(missing_ok=True)
    new.symlink_to(folder.name)
    new.replace(run / BEST)
    for other in run.glob(f"{BEST}_*"):
        if other != folder:
            shutil.rmtree(other)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
