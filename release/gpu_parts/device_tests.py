"""`tests/gpu`, each file in a process of its own: an error of CUDA spoils all that follow it in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import torch

from release.gpu_parts.report import NotRunError, Report
from release.gpu_parts.sizes import Sizes
from release.processes import REPOSITORY

FOLDER = REPOSITORY / "tests" / "gpu"
ENGINE_FILES = (
    "test_engine.py",
    "test_entropy_windows.py",
    "test_sleep.py",
    "test_tensor_parallel.py",
    "test_weight_transfer.py",
)
LEARNER_FILES = ("test_tree_attention.py", "test_learner.py", "test_training.py", "test_recipe.py")
#: The part of this name makes the same comparisons.
COVERED_FILES = {"test_distributed.py": "distributed"}
#: Exit statuses of pytest with which it says all that it has to say in its report: all passed, some failed.
REPORTED = (0, 1)


@dataclass(frozen=True, slots=True)
class Tests:
    """What pytest reports of a file.

    Attributes:
        failed: name -> message.
        skipped: name -> reason.
    """

    num_passed: int
    failed: dict[str, str]
    skipped: dict[str, str]


def engine(sizes: Sizes, report: Report, work: Path) -> None:
    _report_files(ENGINE_FILES, report, work)


def learner(sizes: Sizes, report: Report, work: Path) -> None:
    _report_files(LEARNER_FILES, report, work)


def _report_files(names: Sequence[str], report: Report, work: Path) -> None:
    if not torch.cuda.is_available():
        raise NotRunError("needs a CUDA device")
    for name in names:
        report_file(FOLDER / name, report, work)


def report_file(file: Path, report: Report, work: Path, options: Sequence[str] = ("-m", "gpu")) -> None:
    """Runs the tests of a file; one row for all of them."""
    results = work / f"{file.stem}.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", str(file), *options, "--junitxml", str(results), "-q", "--tb=short"]
    # Their output is this part's.
    status = subprocess.run(command, cwd=REPOSITORY, env=os.environ, check=False).returncode
    if status not in REPORTED or not results.exists():
        report.fail(file.name, f"pytest ended with status {status}")
        return
    tests = read_results(results)
    if not tests.num_passed and not tests.failed:
        report.skip(file.name, next(iter(tests.skipped.values()), "has no tests"))
        return
    detail = {"passed": tests.num_passed, "failed": tests.failed, "skipped": tests.skipped}
    report.add(f"{file.name}: tests that failed", len(tests.failed), at_most=0, detail=detail)


def read_results(file: Path) -> Tests:
    """Reads pytest's report in the format of JUnit."""
    passed, failed, skipped = 0, {}, {}
    for case in ElementTree.parse(file).iter("testcase"):
        found = {child.tag: child.get("message", "") for child in case}
        if message := found.get("failure") or found.get("error"):
            failed[case.get("name", "")] = message.splitlines()[0]
        elif "skipped" in found:
            skipped[case.get("name", "")] = found["skipped"]
        else:
            passed += 1
    return Tests(passed, failed, skipped)
