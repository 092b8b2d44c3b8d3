"""The file of docs/agent.md learns: `pytest -m nightly tests/tuned_examples`."""

import json
import os
import subprocess
import sys

import pytest

from tests.docs.pages import REPOSITORY, snippets
from tuned_examples.smollm2 import smollm2_135m_instruct


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
