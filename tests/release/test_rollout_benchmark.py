"""The benchmarks run end to end on a tiny model; one that fails has no number, is named, and fails the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from release.benchmarks.common.runner import Benchmark
from release.benchmarks.rollout import __main__ as command
from release.benchmarks.rollout import forks
from release.benchmarks.rollout.workload import Workload

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_benchmark_writes_its_numbers_with_their_details(tmp_path):
    results = tmp_path / "results.json"
    argv = [sys.executable, "-m", "release.benchmarks.rollout", "--json", str(results), "--tiny"]
    argv += ["--only", "fork_cost_ratio,lag1_speedup"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    written = json.loads(results.read_text())
    assert written["fork_cost_ratio"] == 0.128
    assert written["fork_cost_ratio_detail"]["tokens_computed_for_16_forks"] == 128
    assert written["fork_cost_ratio_detail"]["tokens_computed_from_scratch"] == 1000
    assert written["fork_cached_fraction"] == 0.96
    assert written["lag1_speedup"] is None
    assert written["lag1_speedup_detail"] == {"skipped": "only a run without --quick measures this"}
    assert {"cpu", "cores", "ram_gib"} <= written["machine"].keys()
    assert {"python", "torch", "ray"} <= written["versions"].keys()
    assert "fork_cost_ratio                           0.128  <= 0.6" in done.stdout


def test_a_failing_benchmark_is_named_and_has_no_number(monkeypatch, tmp_path, capsys):
    def fail(bench):
        raise RuntimeError("no such luck")

    class Good:
        keys = ("entropy_max_error",)
        full_only = False

        def run(self, bench):
            return {"entropy_max_error": 1e-6, "entropy_max_error_detail": {"sides": []}}

    monkeypatch.setattr(forks, "forks", fail)
    failing = Benchmark("rollout.forks:forks", ("fork_cost_ratio",))
    monkeypatch.setattr(command, "BENCHMARKS", (failing, Good()))
    status = command.main(["--json", str(tmp_path / "results.json"), "--tiny"])
    written = json.loads((tmp_path / "results.json").read_text())
    assert status == 1
    assert written["fork_cost_ratio"] is None
    assert written["fork_cost_ratio_detail"] == {"failed": "RuntimeError: no such luck"}
    assert written["entropy_max_error"] == 1e-6
    assert "FAILED: fork_cost_ratio" in capsys.readouterr().err


def test_a_result_without_its_detail_is_a_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(forks, "forks", lambda bench: {"fork_cost_ratio": 0.1})
    monkeypatch.setattr(command, "BENCHMARKS", (Benchmark("rollout.forks:forks", ("fork_cost_ratio",)),))
    assert command.main(["--json", str(tmp_path / "results.json"), "--tiny"]) == 1


def test_lockstep_and_ours_have_the_same_latencies_prompts_and_lengths():
    workload = Workload(turn_tokens=8, median_latency_s=2.0, seed=3)
    latencies = [workload.latency(q, str(a), t) for q in range(4) for a in range(16) for t in range(3)]
    assert workload.latency(1, "7", 2) == latencies[(1 * 16 + 7) * 3 + 2]
    assert max(latencies) == 20.0  # cut at ten times the median
    assert 1.5 < sorted(latencies)[len(latencies) // 2] < 2.5
    assert len(workload.prompt(2)) == 64
    assert workload.prompt(2) != workload.prompt(3)
    assert workload.num_generated_tokens == 4 * 16 * 4 * 8


def test_unknown_figures_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--json", str(tmp_path / "results.json"), "--only", "fork_cost"])
    assert "--only: unknown fork_cost; known are critical_path_ratio, " in capsys.readouterr().err
