"""Finds the trials in a folder, and reads the results that Tune has written of them."""

import json
from pathlib import Path
from typing import Any

from ray.air.constants import TRAINING_ITERATION
from ray.tune.result import EXPR_RESULT_FILE

from rllib_arpo.record.recorder import RECORD_FOLDER


def trial_folders(folder: Path) -> list[Path]:
    """The folders of the trials in `folder`, which is a trial or an experiment.

    Raises:
        ValueError: it has no trial.
    """
    names = (EXPR_RESULT_FILE, RECORD_FOLDER)
    if any((folder / name).exists() for name in names):
        return [folder]
    found = sorted({path.parent for name in names for path in folder.glob(f"*/{name}")})
    if not found:
        raise ValueError(f"{folder}: is not the folder of a run: it has no {EXPR_RESULT_FILE} and no {RECORD_FOLDER}.")
    return found


def read_results(path: Path) -> list[dict[str, Any]]:
    """The results of all iterations in order. If a restored run repeated an iteration, its last result counts.

    An incomplete last line is left out.

    Raises:
        ValueError: a row is not JSON; rows are counted from 1.
    """
    lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines() if path.is_file() else []
    by_iteration = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, row {number}: is not JSON ({error.msg}).") from None
        by_iteration[row[TRAINING_ITERATION]] = row
    return [by_iteration[iteration] for iteration in sorted(by_iteration)]
