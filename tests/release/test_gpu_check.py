"""The check for GPUs on a CPU: the command with `--tiny`, its file, and how it goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from release import gpu_check
from release.benchmarks.learner.rollouts import make_rollouts
from rllib_arpo.learner.passes import cut_into_pieces, group_into_passes
from tests.gpu.workbench import FULL

REPORT = """{"device": "CPU"}
{"test": "good", "figure": "MFU", "value": 0.4, "unit": "", "target": ""}
{"test": "good", "status": "passed", "reason": ""}
{"test": "other", "status": "skipped", "reason": "needs two"}
"""


def test_every_file_of_tests_is_a_part():
    files = (gpu_check.REPOSITORY / "tests" / "gpu").glob("test_*.py")
    assert sorted(gpu_check.PARTS) == sorted(file.stem.removeprefix("test_") for file in files)
    assert gpu_check.LIMIT_S + 2 * gpu_check.GRACE_S < 9 * 60


@pytest.mark.parametrize(
    ("more", "reason", "status"),
    [
        ("", "", "passed"),
        ('{"test": "bad", "status": "failed", "reason": "assert 1 == 2"}', "", "failed"),
        ('{"test": "good", "status": "failed", "reason": "missed"}', "", "failed"),
        ('{"test": "half", "figure": "s", "value": 1.0, "unit": "s", "target": ""}', "", "failed"),
        ("", "took longer than 510 s", "failed"),
    ],
)
def test_a_part_is_read_from_its_report(tmp_path, more, reason, status):
    (tmp_path / "report").write_text(REPORT + more)
    (tmp_path / "log").write_text("last words\n")
    part = gpu_check.read_part(tmp_path / "report", reason, tmp_path / "log")
    assert (part["status"], part["reason"], part["device"]) == (status, reason, "CPU")
    assert part["tests"]["good"]["figures"]["MFU"]["value"] == 0.4
    assert part["tests"]["other"] == {"status": "skipped", "reason": "needs two", "figures": {}}
    assert part["output"] == (["last words"] if status == "failed" else [])


def test_a_cut_run_goes_on_with_the_parts_that_have_not_passed(tmp_path, monkeypatch):
    asked, statuses, file = [], {"update": "failed"}, tmp_path / "gpu.json"

    def run_part(name: str, work: Path, *, tiny: bool, limit: float) -> dict:
        asked.append(name)
        return {"status": statuses.get(name, "passed"), "reason": "", "seconds": 1.0, "tests": {}, "output": []}

    def main(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--json", str(file), *arguments])
        return gpu_check.main()

    monkeypatch.setattr(gpu_check, "run_part", run_part)
    assert main("--only", "update", "rollout") == 1
    statuses.clear()
    assert main() == 0
    assert asked == ["update", "rollout", *(name for name in gpu_check.PARTS if name != "rollout")]
    assert json.loads(file.read_text())["parts"].keys() == set(gpu_check.PARTS)
    with pytest.raises(SystemExit):
        main("--tiny")


CHECK = ("release/gpu_check.py", "--json")
#: Of its tests the second never ends.
ENDLESS = """
import time

def test_one(sizes, figures):
    figures.add("first", 1.0, "s")

def test_two(sizes, figures):
    figures.add("second", 2.0, "s")
    time.sleep(600)
"""


def copy_project(tree: Path) -> None:
    tree.mkdir()
    for name in ("rllib_arpo", "envs", "release", "tests", "tuned_examples", "pyproject.toml"):
        path = gpu_check.REPOSITORY / name
        (partial(shutil.copytree, symlinks=True) if path.is_dir() else shutil.copy)(path, tree / name)


@pytest.mark.slow
def test_a_part_that_is_asked_to_end_keeps_its_figures(tmp_path):
    tree, file = tmp_path / "tree", tmp_path / "gpu.json"
    copy_project(tree)
    (tree / "tests" / "gpu" / "test_update.py").write_text(ENDLESS)
    command = [sys.executable, *CHECK, str(file), "--tiny", "--only", "update"]
    check, report = subprocess.Popen(command, cwd=tree), tmp_path / "gpu.json.work" / "update.jsonl"
    while not report.exists() or "second" not in report.read_text():
        assert check.poll() is None
        time.sleep(0.2)
    for _ in range(2):
        check.send_signal(signal.SIGTERM)
    assert check.wait() == 1
    part = json.loads(file.read_text())["parts"]["update"]
    assert (part["status"], part["reason"], part["device"]) == ("failed", gpu_check.ENDED, "CPU")
    assert {name: (test["status"], *test["figures"]) for name, test in part["tests"].items()} == {
        "test_one": ("passed", "first"),
        "test_two": ("cut", "second"),
    }


def test_the_questions_of_an_update_fill_its_passes():
    for sharing in FULL.sharing:
        trees = make_rollouts(FULL.update_trees(sharing)).trees
        for most in FULL.tokens_per_pass:
            passes = group_into_passes(cut_into_pieces(dict(enumerate(trees)), most), most)
            assert all(sum(piece.packed.num_tokens for piece in one) > 0.99 * most for one in passes)


#: They run in one process. Beside these, "rollout" starts a second vLLM, and "main_job" starts what others start.
TINY_PARTS = ("attention", "profile", "update", "distributed", "probes", "weights", "training")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_tiny_parts_pass_on_a_cpu(tmp_path):
    report, log = tmp_path / "report", tmp_path / "log"
    sizes = {"GPU_CHECK": "tiny", "GPU_CHECK_WORK": str(tmp_path / "work"), "GPU_CHECK_REPORT": str(report)}
    tests = [sys.executable, "-m", "pytest", "-otimeout=0", *(f"tests/gpu/test_{name}.py" for name in TINY_PARTS)]
    options = {"cwd": gpu_check.REPOSITORY, "env": os.environ | sizes, "capture_output": True, "text": True}
    log.write_text(subprocess.run(tests, **options).stdout)
    parts = gpu_check.read_part(report, "", log)
    assert parts["status"] == "passed", parts["output"]
    assert parts["tests"]["test_seconds_of_a_push[in_process_reload]"]["status"] == "passed"
    figures = {figure for test in parts["tests"].values() for figure in test["figures"]}
    wanted = {"relative error, heads (2, 1, 32)", "MFU", "in kernels", "share of the ideal speedup 2.51"}
    wanted |= {"gloo: relative error of the gradient", "difference when they have arrived", "forks a question"}
    assert wanted <= figures
