"""The check for GPUs on a CPU: the command with `--tiny`, its file, and how it goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest

from release import gpu_check

REPORT = """<testsuites><testsuite><properties><property name="device" value="CPU"/></properties>
<testcase name="good"><properties><property name="MFU" value='{"value": 0.4, "unit": "", "target": ""}'/></properties>
</testcase><testcase name="other"><skipped message="needs two"/></testcase>{more}</testsuite></testsuites>"""


def test_every_file_of_tests_is_a_part():
    files = (gpu_check.REPOSITORY / "tests" / "gpu").glob("test_*.py")
    assert sorted(gpu_check.PARTS) == sorted(file.stem.removeprefix("test_") for file in files)
    assert gpu_check.LIMIT_S + 2 * gpu_check.GRACE_S < 9 * 60


@pytest.mark.parametrize(
    ("more", "reason", "status"),
    [
        ("", "", "passed"),
        ('<testcase name="bad"><failure message="assert 1 == 2&#10;more"/></testcase>', "", "failed"),
        ('<testcase name="good"><error message="missed"/></testcase>', "", "failed"),
        ("", "took longer than 470 s", "failed"),
    ],
)
def test_a_part_is_read_from_its_report(tmp_path, more, reason, status):
    (tmp_path / "report").write_text(REPORT.replace("{more}", more))
    (tmp_path / "log").write_text("last words\n")
    part = gpu_check.read_part(tmp_path / "report", reason, tmp_path / "log")
    assert (part["status"], part["reason"], part["device"]) == (status, reason, "CPU")
    assert part["tests"]["good"]["figures"]["MFU"]["value"] == 0.4
    assert part["tests"]["other"] == {"status": "skipped", "reason": "needs two", "figures": {}}
    assert part["output"] == (["last words"] if status == "failed" else [])


def test_a_part_without_a_report_has_failed(tmp_path):
    (tmp_path / "log").write_text("")
    assert gpu_check.read_part(tmp_path / "none", "", tmp_path / "log")["status"] == "failed"


def test_a_cut_run_goes_on_with_the_parts_that_have_not_passed(tmp_path, monkeypatch):
    asked, statuses, file = [], {"update": "failed"}, tmp_path / "gpu.json"

    def run_part(name: str, work: Path, *, tiny: bool) -> dict:
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


#: Beside these, "rollout" starts a second vLLM, and "weights", "main_job" and "against_trl" start what others start.
TINY_PARTS = ("attention", "update", "distributed", "probes", "training")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_tiny_parts_pass_on_a_cpu_where_the_package_is_not_installed(tmp_path):
    """In a copy of the tree, by an interpreter without an environment: of PYTHONPATH it takes packages, but no .pth."""
    tree, file = tmp_path / "tree", tmp_path / "gpu.json"
    for name in ("rllib_arpo", "envs", "release", "tests", "tuned_examples", "pyproject.toml"):
        path = gpu_check.REPOSITORY / name
        copy = partial(shutil.copytree, symlinks=True) if path.is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(path, tree / name)
    options = {"cwd": tree, "capture_output": True, "text": True}
    options["env"] = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    python = sys._base_executable
    found = subprocess.run([python, "-c", "import sys; del sys.path[0]; import rllib_arpo"], **options)
    if "No module named 'rllib_arpo'" not in found.stderr:
        pytest.skip("The interpreter has the package without an environment.")
    command = [python, "release/gpu_check.py", "--json", str(file), "--tiny", "--only", *TINY_PARTS]
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(file.read_text())["parts"]
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(TINY_PARTS, "passed")
    figures = [figure for part in parts.values() for test in part["tests"].values() for figure in test["figures"]]
    wanted = {"relative error, heads (2, 1, 32)", "MFU", "gloo: relative error of the gradient", "forks a question"}
    assert wanted | {"difference when they have arrived", "share of the ideal speedup 2.49"} <= set(figures)
