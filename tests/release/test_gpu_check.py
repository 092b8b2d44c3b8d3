"""The check for GPUs on a CPU: the command, its file and its table, and with `--tiny` most of its parts.

Left out here, for their seconds: "rollout" starts a second vLLM in a process of its own, and its figures are those of
test_rollout_benchmark.py; "weights" and "main_job" start one more engine each for what "training" and
test_end_to_end_benchmark.py do as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from release import gpu_check
from release.gpu_parts import device_tests, process
from release.gpu_parts.parts import LIMIT_S, NAMES, PARTS, Part
from release.gpu_parts.report import NotRunError, Report
from release.gpu_parts.results import Results, part_entry, part_outcome, table
from release.processes import GRACE_S, REPOSITORY

NO_CUDA = "needs a CUDA device"


def rows_of(file: Path) -> list[dict]:
    return [line for line in map(json.loads, file.read_text().splitlines()) if "part" in line]


def tiny_rows(name: str, work: Path) -> list[dict]:
    """The figures of a part, run in this process."""
    process.run_part(name, work / f"{name}.rows", work, tiny=True)
    return rows_of(work / f"{name}.rows")


def outcomes(rows: list[dict]) -> dict[str, str]:
    """Figure -> its outcome, with the reason if it was not run."""
    return {row["name"]: ": ".join(filter(None, [row["outcome"], row["reason"]])) for row in rows}


def test_the_command_runs_a_part_and_does_not_run_it_again(tmp_path, capsys):
    file = tmp_path / "gpu.json"
    argv = ["--json", str(file), "--tiny", "--only", "attention"]
    done = subprocess.run(
        [sys.executable, "release/gpu_check.py", *argv], cwd=REPOSITORY, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(file.read_text())
    assert written["command"].startswith("python release/gpu_check.py --json ")
    assert (written["size"], written["parts"].keys()) == ("tiny", {"attention"})
    part = written["parts"]["attention"]
    assert (part["outcome"], part["reason"], part["output"], part["device"]) == ("passed", "", [], "CPU")
    assert outcomes(part["rows"]) == {
        "path_gather: relative error of gradients": "passed",
        "path_gather: forward and backward of 256 tokens": "measured",
        "varlen": "not run: tree_attention='varlen' needs half precision on CUDA from compute capability 8.0 on, not "
        "torch.float32 on cpu.",
    }
    assert part["rows"][0]["value"] < 1e-5
    assert part["rows"][0]["target"] == "<= 0.0001"
    # What is done is not run again.
    assert gpu_check.main(argv) == 0
    assert json.loads(file.read_text()) == written
    assert capsys.readouterr().out == done.stdout.partition(" s\n")[2]


def test_tiny_parts_without_an_engine(tmp_path):
    machine = {row["name"]: row["outcome"] for row in tiny_rows("machine", tmp_path)}
    assert {"Python", "ray", "torch", "transformers", "vllm", "GPUs", "triton"} <= machine.keys()
    assert machine["best bf16 product of two square matrices"] == "measured"
    assert outcomes(tiny_rows("update", tmp_path)) == {
        "update: unique tokens": "measured",
        "update: MFU": "measured",
        "update with gradient checkpointing: unique tokens": "measured",
        "update with gradient checkpointing: MFU": "measured",
        "forward and backward of trees, share of sum/unique 2.49": "measured",
    }
    assert outcomes(tiny_rows("distributed", tmp_path)) == {
        "gloo, 1 rank, replicas: relative error of the gradient": "passed",
        "gloo, 1 rank, FSDP2: relative error of the gradient": "passed",
        "gloo, 2 ranks, replicas": "not run: needs 2 CUDA devices, and there are 0",
        "gloo, 2 ranks, FSDP2": "not run: needs 2 CUDA devices, and there are 0",
    }
    for name in ("engine_tests", "learner_tests"):
        assert outcomes(tiny_rows(name, tmp_path)) == {process.WHOLE: f"not run: {NO_CUDA}"}


def test_a_tiny_engine_computes_as_transformers_does(tmp_path):
    rows = tiny_rows("probes", tmp_path)
    assert [(row["name"], row["outcome"]) for row in rows] == [
        ("model runner", "measured"),
        ("log-probs: error / that of transformers", "passed"),
        ("entropies: error / that of transformers", "passed"),
        ("probe of weights that have not arrived", "passed"),
        ("probe of weights that have arrived", "passed"),
    ]
    assert 1e-5 < rows[1]["detail"]["nats"] < 0.05


def test_the_whole_algorithm_trains_and_goes_on_from_a_checkpoint(ray_cluster, tmp_path):
    rows = tiny_rows("training", tmp_path)
    assert outcomes(rows) == {
        "an engine that sleeps during updates": f"not run: {NO_CUDA}",
        "start of engine and learner": "measured",
        "an iteration: rollout": "measured",
        "an iteration: update": "measured",
        "an iteration: sync": "measured",
        "generated tokens": "measured",
        "MFU of the update, engine's sleep included": "measured",
        "engine's log-probs against the learner's": "passed",
        "forks a question": "passed",
        "largest change of a weight in training": "passed",
        "checkpoint written": "measured",
        "largest difference of a restored weight": "passed",
        "restored, with a new engine": "measured",
        "engine against learner after the restoration": "passed",
    }
    assert [row["value"] for row in rows if row["name"] == "forks a question"] == [2.0]


@pytest.mark.parametrize(
    ("value", "target", "judges_speed", "outcome"),
    [
        (1.0, {}, True, "measured"),
        (0.95, {"at_least": 0.95, "is_speed": True}, True, "passed"),
        (0.94, {"at_least": 0.95, "is_speed": True}, True, "failed"),
        (0.94, {"at_least": 0.95, "is_speed": True}, False, "measured"),
        (2.0, {"at_most": 2}, False, "passed"),
        (2.1, {"at_most": 2}, False, "failed"),
        (float("nan"), {"at_most": 2}, False, "failed"),
    ],
)
def test_a_figure_is_judged_by_its_target(tmp_path, value, target, judges_speed, outcome):
    Report("one", tmp_path / "rows", judges_speed=judges_speed).add("figure", value, "s", **target)
    [row] = rows_of(tmp_path / "rows")
    assert (row["part"], row["name"], row["unit"], row["outcome"]) == ("one", "figure", "s", outcome)


def test_what_fails_within_a_part_is_a_figure_of_it(tmp_path):
    report = Report("one", tmp_path / "rows", judges_speed=True)
    with report.attempt("first"):
        raise MemoryError("no such\nluck")
    with report.attempt("second"):
        raise NotRunError("needs two")
    assert outcomes(rows_of(tmp_path / "rows")) == {
        "first": "failed: MemoryError: no such",
        "second": "not run: needs two",
    }


def test_a_missing_package_is_named_and_an_own_one_is_an_error(tmp_path, monkeypatch):
    missing = "vllm"

    def load(_part):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(Part, "load", load)
    expected = {process.WHOLE: "not run: needs the package vllm, which is not installed"}
    assert outcomes(tiny_rows("probes", tmp_path)) == expected
    missing = "rllib_arpo.no_such_module"
    with pytest.raises(ModuleNotFoundError):
        tiny_rows("probes", tmp_path)


def test_a_part_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "LIMIT_S", 0.3)
    part = gpu_check.run_part("machine", tmp_path, tiny=True)
    assert (part["outcome"], part["reason"]) == ("failed", "took longer than 0.3 s")
    assert part["seconds"] < 30


def test_a_part_that_dies_keeps_its_figures_and_its_last_words(tmp_path):
    rows, log = tmp_path / "rows", tmp_path / "log"
    rows.write_text('{"device": "a GPU", "commit": "abc"}\n')
    Report("one", rows, judges_speed=True).add("first", 1.0)
    log.write_text("".join(f"line {i}\n" for i in range(100)))
    part = part_entry(rows, log, status=-9, seconds=3.14, limit_s=10)
    assert [row["name"] for row in part.pop("rows")] == ["first"]
    assert part == {
        "outcome": "failed", "reason": "was killed by signal 9", "seconds": 3.1, "device": "a GPU", "commit": "abc",
        "output": [f"line {i}" for i in range(75, 100)],
    }  # fmt: skip
    assert part_entry(tmp_path / "none", log, 1, 0.0, 10)["reason"] == "ended with status 1"


@pytest.mark.parametrize(
    ("of_figures", "of_part"),
    [
        (["passed", "measured", "not run"], "passed"),
        (["passed", "failed", "not run"], "failed"),
        (["not run", "not run"], "not run"),
        ([], "failed"),
    ],
)
def test_the_outcome_of_a_part(of_figures, of_part):
    assert part_outcome(of_figures) == of_part


def entry(outcome: str = "passed", reason: str = "", **row) -> dict:
    row = {"part": "update", "name": "MFU", "value": 0.4, "unit": "", "target": ">= 0.35", "reason": "", **row}
    return {
        "outcome": outcome, "reason": reason, "seconds": 2.0, "device": "CPU", "commit": "abc",
        "rows": [{**row, "outcome": outcome}], "output": ["last words"] if reason else [],
    }  # fmt: skip


def test_a_cut_run_goes_on_and_parts_are_run_again_on_demand(tmp_path, monkeypatch, capsys):
    asked, file = [], tmp_path / "gpu.json"
    outcome = {"update": "failed"}
    monkeypatch.setattr(
        gpu_check, "run_part", lambda name, work, tiny: asked.append(name) or entry(outcome.get(name, "passed"))
    )
    argv = ["--json", str(file), "--tiny"]
    assert gpu_check.main([*argv, "--only", "update", "rollout"]) == 1
    assert asked == ["update", "rollout"]
    outcome.clear()
    assert gpu_check.main(argv) == 1
    assert sorted(asked) == sorted(NAMES)
    assert gpu_check.main([*argv, "--again", "update"]) == 0
    assert asked[len(NAMES) :] == ["update"]
    assert Results.read(file).parts.keys() == set(NAMES)

    capsys.readouterr()
    assert gpu_check.main(["--table", str(file)]) == 0
    assert capsys.readouterr().out.startswith("part ")
    assert gpu_check.main(["--json", str(file)]) == 2
    assert capsys.readouterr().err == f"error: {file} has results of a tiny run: name another file for a full one.\n"
    file.write_text("[]")
    assert gpu_check.main(argv) == 2
    assert f"error: {file} has no results of a check: TypeError" in capsys.readouterr().err


def test_the_table():
    parts = {"update": entry(), "rollout": entry("failed", "took longer than 500 s", part="rollout", value=None)}
    assert table(parts).splitlines() == [
        "part           figure                                                               value  target     outcome",
        "update         MFU                                                                    0.4  >= 0.35    passed",
        "rollout        MFU                                                                      -  >= 0.35    failed",
        "",
        "rollout took longer than 500 s; the last lines of its output:",
        "last words",
        "",
        "CPU, commit abc",
        "4 seconds: update 2, rollout 2",
    ]


def test_all_parts_fit_into_25_minutes_by_their_estimates_and_the_documentation_names_them():
    assert sum(part.estimate_s for part in PARTS) <= 25 * 60
    assert LIMIT_S + GRACE_S < 9 * 60
    page = (REPOSITORY / "docs" / "benchmarks.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_every_file_of_tests_for_gpus_belongs_to_a_part():
    files = [*device_tests.ENGINE_FILES, *device_tests.LEARNER_FILES, *device_tests.COVERED_FILES]
    assert sorted(files) == sorted(path.name for path in device_tests.FOLDER.glob("test_*.py"))
    assert set(device_tests.COVERED_FILES.values()) <= set(NAMES)


def test_the_tests_of_a_device_are_counted(tmp_path):
    file = tmp_path / "test_some.py"
    file.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='needs two')\n"
        "def test_other(): pass\n"
    )
    report = Report("engine_tests", tmp_path / "rows", judges_speed=True)
    device_tests.report_file(file, report, tmp_path, options=())
    device_tests.report_file(file, report, tmp_path, options=("-k", "other"))
    device_tests.report_file(tmp_path / "test_none.py", report, tmp_path, options=())
    some, other, none = rows_of(tmp_path / "rows")
    assert (some["name"], some["outcome"], some["value"]) == ("test_some.py: tests that failed", "failed", 1)
    assert some["detail"] == {
        "passed": 1,
        "failed": {"test_bad": "assert 1 == 2"},
        "skipped": {"test_other": "needs two"},
    }
    assert (other["name"], other["outcome"], other["reason"]) == ("test_some.py", "not run", "needs two")
    assert (none["name"], none["outcome"], none["reason"]) == ("test_none.py", "failed", "pytest ended with status 4")
