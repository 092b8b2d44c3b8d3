"""Prints the results of runs of a trails recipe, one line a run: entropy, forks, accuracy and minutes.

python -m release.evidence.runs_table ~/ray_results/ARPO_2026-11-22_09-31-16 ...
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from release.evidence.study_run import find

HEADER = (
    "| seed | dH, iteration 1 | AUC of dH | forks at decisive steps | accuracy before | after 4 | at the end"
    " | iterations | minutes |"
)
#: Where a result has the accuracy of its evaluation.
ACCURACY = ("evaluation", "env_runners", "accuracy")


def read_run(folder: Path) -> tuple[list[dict[str, Any]], float]:
    """The results of a run's iterations, and the accuracy of its evaluation before the first.

    Raises:
        FileNotFoundError: there is no result below `folder`, the folder of a run or of its experiment.
        ValueError: there are several trials below `folder`.
    """
    paths = sorted(folder.expanduser().rglob("result.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no result.json below it.")
    if len(paths) > 1:
        raise ValueError(f"{folder}: has {len(paths)} trials, name the folder of one, such as {paths[0].parent}.")
    results = [json.loads(line) for line in paths[0].read_text().splitlines()]
    answers = [json.loads(line) for line in (paths[0].parent / "evaluations.jsonl").read_text().splitlines()]
    return results, float(np.mean([answer["accuracy"] for answer in first_evaluation(answers)]))


def first_evaluation(answers: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the evaluation before the first iteration; those of a later one may bear its number again."""
    first: dict[str, Mapping[str, Any]] = {}
    for answer in answers:
        if answer["evaluation"] != 0 or answer["question_id"] in first:
            break
        first[answer["question_id"]] = answer
    return list(first.values())


def table_row(results: Sequence[Mapping[str, Any]], before: float) -> str:
    """AUC and share of forks are means over the iterations, an iteration without the figure left out."""
    rollouts = [result["env_runners"] for result in results]
    accuracies = {r["training_iteration"]: found for r in results if (found := find(r, ACCURACY)) is not None}
    rise = find(rollouts[0], ("entropy", "delta"))
    cells = (
        results[0]["config"]["seed"], "" if rise is None else f"{rise:+.3f}", _mean(rollouts, "auc"),
        _mean(rollouts, "fork_share"), f"{before:.3f}", f"{accuracies[4]:.3f}" if 4 in accuracies else "",
        f"{accuracies[max(accuracies)]:.3f}" if accuracies else "", len(results),
        f"{results[-1]['time_total_s'] / 60:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _mean(rollouts: Sequence[Mapping[str, Any]], name: str) -> str:
    """Of a metric of the decisive steps, over the iterations that have it."""
    found = [value for rollout in rollouts if (value := find(rollout, ("decisive", name))) is not None]
    return f"{np.mean(found):.2f}" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    print(HEADER)
    print("|" + "---|" * HEADER.count(" | ") + "---|")
    for folder in parser.parse_args().folders:
        print(table_row(*read_run(folder)))


if __name__ == "__main__":
    main()
