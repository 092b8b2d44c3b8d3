"""The recipes and the file of docs/agent.md learn: `pytest -m nightly tests/tuned_examples`.

Each run takes from some minutes to half an hour on two cores.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.docs.pages import REPOSITORY, snippets
from tuned_examples.smollm2 import smollm2_135m_instruct

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


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_agent_in_one_file_learns(tmp_path):
    (snippet,) = [one for one in snippets(REPOSITORY / "docs" / "agent.md", "python") if one.file == "shop.py"]
    # The same model as that of the hub, but for the rounding of its weights.
    text = snippet.text.replace("HuggingFaceTB/SmolLM2-135M-Instruct", smollm2_135m_instruct())
    (tmp_path / "shop.py").write_text(text)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)}, check=True)
    (results,) = (tmp_path / "ray_results").rglob("result.json")
    accuracies = [json.loads(line)["env_runners"]["accuracy"] for line in results.read_text().splitlines()]
    assert len(accuracies) == 10
    assert accuracies[-1] > 0.7 > 0.5 > accuracies[0]
