"""Whole iterations of the main job against TRL's (`release/benchmarks/end_to_end`), where TRL is installed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from release.gpu_parts.main_job import has_smollm2
from release.gpu_parts.report import NotRunError, Report
from release.gpu_parts.sizes import Sizes
from release.processes import REPOSITORY

#: Seconds of TRL, which samples with vLLM, / ours.
OF_TRL = 1.5
TRL_PYTHON = REPOSITORY / ".venv-trl" / "bin" / "python"


def run(sizes: Sizes, report: Report, work: Path) -> None:
    python = Path(sys.executable) if importlib.util.find_spec("trl") else TRL_PYTHON
    if not python.exists():
        raise NotRunError(f"TRL is not installed, and there is no {TRL_PYTHON.relative_to(REPOSITORY)}")
    with_vllm = torch.cuda.is_available() and _has_vllm(python)
    results = _compare(python, sizes, work, with_vllm=with_vllm)
    for key in ("iterations_per_hour_trl", "iterations_per_hour_arpo"):
        report.add(key, results[key], detail=results[f"{key}_detail"])
    sampler = "vLLM" if with_vllm else "transformers"
    target = OF_TRL if with_vllm else None
    name, detail = f"seconds of TRL, sampling with {sampler}, / ours", results["speedup_arpo_detail"]
    report.add(name, results["speedup_arpo"], at_least=target, is_speed=True, detail=detail)


def _has_vllm(python: Path) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def _compare(python: Path, sizes: Sizes, work: Path, *, with_vllm: bool) -> dict:
    """Runs the benchmark; it goes on where an earlier run was ended."""
    results, runs = work / "against_trl.json", work / "against_trl"
    if results.exists():
        results.unlink()
        shutil.rmtree(runs)
    size = ["--tiny"] if sizes.is_tiny else [] if has_smollm2() else ["--quick"]
    device = ["--gpu"] * torch.cuda.is_available() + ["--trl-vllm"] * with_vllm
    command = [sys.executable, "-m", "release.benchmarks.end_to_end", "--json", str(results), "--runs", str(runs)]
    command += ["--only", "trl", "arpo", "--trl-python", str(python), *size, *device]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return json.loads(results.read_text())
