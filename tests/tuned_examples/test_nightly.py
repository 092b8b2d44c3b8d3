"""The recipes learn, and those with learning broken on purpose do not: `pytest -m nightly tests/tuned_examples`.

Each run takes from some minutes to half an hour on two cores.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SMALL, BROKEN = "tuned_examples.trails_small_arpo", "release.evidence.broken_recipe"


@dataclass(frozen=True, slots=True)
class Learning:
    """A run of a recipe.

    Attributes:
        reward: what its metric has to reach. Of the small model: the share of right answers in the last evaluation,
            0.25 before training.
        learns: whether it has to reach the reward, or must not.
    """

    recipe: str
    reward: float
    arguments: tuple[str, ...] = ()
    learns: bool = True


RUNS = {
    "trails_smollm2": Learning("tuned_examples.trails_smollm2_135m_arpo", 0.5),
    "trails_small": Learning(SMALL, 0.7),
    "trails_small_lr": Learning(BROKEN, 0.7, ("--broken", "lr"), learns=False),
    "trails_small_shuffled": Learning(BROKEN, 0.7, ("--broken", "shuffled"), learns=False),
    "trails_small_swapped": Learning(BROKEN, 0.7, ("--broken", "swapped"), learns=False),
}


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_learns(name, tmp_path, record_property):
    run, figures = RUNS[name], tmp_path / "figures.json"
    options = [*run.arguments, "--as-release-test", "--stop-reward", str(run.reward), "--output", str(tmp_path / "run")]
    environment = {**os.environ, "TEST_OUTPUT_JSON": str(figures)}
    subprocess.run([sys.executable, "-m", run.recipe, *options], check=True, cwd=REPOSITORY, env=environment)
    found = json.loads(figures.read_text())
    for key in ("success_metric", "best_value", "time_taken"):
        record_property(key, found[key])
    assert found["passed"] == [run.learns], found
