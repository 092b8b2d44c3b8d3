"""The recipes learn: `pytest -m nightly tests/tuned_examples`.

Each run takes from some minutes to half an hour on two cores.
"""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: Recipe -> what its metric has to reach. Of the small model: the share of right answers in the last evaluation, 0.25
#: before training.
REWARDS = {"trails_smollm2_135m_arpo": 0.5, "trails_small_arpo": 0.7}


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("recipe", REWARDS)
def test_a_recipe_learns(recipe, tmp_path):
    options = ["--as-test", "--stop-reward", str(REWARDS[recipe]), "--output", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", f"tuned_examples.{recipe}", *options], check=True, cwd=REPOSITORY)
