"""Whole iterations of the main job against TRL's (`release/benchmarks/end_to_end`), where TRL is installed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.test_main_job import has_smollm2

REPOSITORY = Path(__file__).resolve().parents[2]
#: Seconds of TRL, which samples with vLLM, / ours.
OF_TRL = 1.5
TRL_PYTHON = REPOSITORY / ".venv-trl" / "bin" / "python"


def test_seconds_of_an_iteration(sizes, figures, tmp_path):
    python = Path(sys.executable) if importlib.util.find_spec("trl") else TRL_PYTHON
    if not python.exists():
        pytest.skip(f"TRL is not installed, and there is no {TRL_PYTHON.relative_to(REPOSITORY)}")
    file = tmp_path / "results.json"
    size = ["--tiny"] if sizes.is_tiny else [] if has_smollm2() else ["--quick"]
    command = [sys.executable, "-m", "release.benchmarks.end_to_end", "--json", str(file)]
    command += ["--sides", "trl", "arpo", "--trl-python", str(python), *["--gpu"] * torch.cuda.is_available()]
    subprocess.run([*command, *size], cwd=REPOSITORY, check=True)
    results = json.loads(file.read_text())
    for side in ("trl", "arpo"):
        key = f"iterations_per_hour_{side}"
        figures.add(key, results[key], detail=results[f"{key}_detail"])
    with_vllm = results["iterations_per_hour_trl_detail"]["setting"]["vllm"]
    sampler, target = ("vLLM", {"at_least": OF_TRL}) if with_vllm else ("transformers", {})
    name, detail = f"seconds of TRL, sampling with {sampler}, / ours", results["speedup_arpo_detail"]
    figures.add(name, results["speedup_arpo"], is_speed=True, **target, detail=detail)
