"""The recipes learn: `pytest -m nightly tests/tuned_examples`.

Each run takes from some minutes to half an hour on two cores.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: Recipe -> the share of right answers that its last evaluation has to reach; before training it is about a quarter.
ACCURACIES = {"trails_smollm2_135m_arpo": 0.5, "trails_small_arpo": 0.7}


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("recipe", ACCURACIES)
def test_a_recipe_learns(recipe, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", f"tuned_examples.{recipe}", "--output", str(run)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    rows = [json.loads(line) for line in (run / "trial" / "result.json").read_text().splitlines()]
    accuracies = [row["evaluation"]["env_runners"]["accuracy"] for row in rows if "evaluation" in row]
    assert accuracies[-1] >= ACCURACIES[recipe]
