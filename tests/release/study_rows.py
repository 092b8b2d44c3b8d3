"""Rows and files of studies for tests."""

from collections.abc import Mapping
from pathlib import Path

from release.evidence.study import package_version
from release.evidence.study_file import Study, read_study
from release.evidence.study_rows import COLUMNS, append_row, run_path

TEXT = """
recipe: tests.release.tiny_recipe
arguments: --lr 1e-3
iterations: 4
evaluate_every: 2
seeds: [0, 1]
jobs: 2
baseline: grpo
accuracies_to_reach: [0.5]
calls: 20
arms:
  grpo: --algo GRPO
  threshold: ""
  random: {arguments: --branching random, fork_rate_of: threshold}
"""

#: In place of `seeds`.
STARTS = """start_models:
  - {arguments: --cold-start-seed 0, seeds: [0, 1]}
  - {arguments: --start-model b, seeds: [2], sha256: 5d1e0c77a4b2}
"""


def write_study(folder: Path, text: str = TEXT) -> Study:
    path = folder / "tiny_study.yaml"
    path.write_text(text)
    return read_study(path)


def make_row(arm: str, seed: int, iteration: int, calls: int, accuracy: float | None, **more) -> dict:
    """All columns; those that are not given are null."""
    totals = {"tool_calls": calls, "generated_tokens": 2 * calls, "computed_tokens": 3 * calls}
    totals |= {"seconds": 1.0, "cpu_seconds": 1.0}
    own = {"study": "s", "arm": arm, "seed": seed, "iteration": iteration, "accuracy": accuracy}
    return dict.fromkeys(COLUMNS) | own | totals | more


def write_run(folder: Path, study: Study, arm: str, seed: int, *iterations: int, **more) -> Path:
    """A run with rows of these iterations and of the settings that the study gives to the arm."""
    own = study.arms[arm]
    told: Mapping = {
        "settings_hash": study.settings_hash(own),
        "study": study.name,
        "package_version": package_version(),
        "last_iteration": own.iterations,
        "fork_rate_of": own.fork_rate_of,
        "arguments": " ".join([*study.all_arguments(own), *study.start_model(seed).arguments]),
    }
    path = run_path(folder, arm, seed)
    for iteration in iterations:
        append_row(path, make_row(arm, seed, iteration, 7 * iteration, 0.5) | told | more)
    return path
