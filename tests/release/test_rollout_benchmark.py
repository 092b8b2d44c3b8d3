"""The benchmarks of the rollout on a tiny model; one that fails has no number, is named, and fails the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from release.benchmarks.common.bench import Benchmark, alternate, ratio
from release.benchmarks.rollout import __main__ as command

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_benchmark_writes_its_numbers_with_their_details(tmp_path):
    results = tmp_path / "results.json"
    argv = [sys.executable, "-m", "release.benchmarks.rollout", "--json", str(results), "--tiny"]
    argv += ["--only", "lockstep_ratio_longtail,step_python_ratio"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    written = json.loads(results.read_text())
    assert written["lockstep_ratio_longtail_detail"]["equal_tokens"] == [1.0]
    assert written["step_python_ratio"] > 0
    assert {"cpu", "cores", "ram_gib"} <= written["machine"].keys()
    assert {"python", "torch", "ray"} <= written["versions"].keys()
    assert "lockstep_ratio_longtail  " in done.stdout


def test_a_failing_benchmark_is_named_and_has_no_number(monkeypatch, tmp_path, capsys):
    def fail(bench):
        raise RuntimeError("no such luck")

    def measure(bench):
        return {"entropy_overhead": 0.01, "entropy_overhead_detail": {}}

    benchmarks = (Benchmark(fail, {"raw_vllm_ratio": "<= 0.6"}), Benchmark(measure, {"entropy_overhead": "<= 0.03"}))
    monkeypatch.setattr(command, "BENCHMARKS", benchmarks)
    file = tmp_path / "results.json"
    assert command.main(["--json", str(file), "--tiny"]) == 1
    written = json.loads(file.read_text())
    assert (written["raw_vllm_ratio"], written["entropy_overhead"]) == (None, 0.01)
    assert written["raw_vllm_ratio_detail"] == {"failed": "RuntimeError: no such luck"}
    assert "FAILED: raw_vllm_ratio" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--json", str(file), "--only", "raw"])
    assert "--only: there is no figure raw; there are entropy_overhead, " in capsys.readouterr().err


def test_sides_are_measured_in_turn_and_paired():
    turns = []

    def side(name: str, seconds: float):
        return lambda repeat: turns.append((name, repeat)) or seconds * (repeat + 2)

    measured = alternate({"ours": side("ours", 1.0), "theirs": side("theirs", 3.0)}, 2)
    assert turns == [("theirs", -1), ("ours", -1), ("ours", 0), ("theirs", 0), ("theirs", 1), ("ours", 1)]
    assert measured == {"ours": [2.0, 3.0], "theirs": [6.0, 9.0]}
    found = ratio("speedup", "theirs", "ours", measured, model="tiny")
    assert found["speedup"] == 3.0
    assert found["speedup_detail"] == {
        "ours": {"min": 2.0, "median": 2.5, "max": 3.0, "values": [2.0, 3.0]},
        "theirs": {"min": 6.0, "median": 7.5, "max": 9.0, "values": [6.0, 9.0]},
        "ratios": {"min": 3.0, "median": 3.0, "max": 3.0, "values": [3.0, 3.0]},
        "model": "tiny",
    }
