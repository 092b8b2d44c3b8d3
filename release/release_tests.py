"""Runs the tests of release_tests.yaml one after the other, and says which passed.

    python -m release.release_tests                       # those that run nightly, where this machine has their GPUs
    python -m release.release_tests trails_small_arpo wheel --output DIR
    python -m release.release_tests reasoning_arpo_qwen2_5_3b --set model=FOLDER data=FILE index=FOLDER \\
        output=FOLDER

DIR gets each test's log, and the figures that it writes. The exit status is the number of tests that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import string
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from release.processes import run_within

FILE = Path(__file__).with_suffix(".yaml")
NIGHTLY = "nightly"


@dataclass(frozen=True, slots=True)
class ReleaseTest:
    """An entry of the file.

    Attributes:
        timeout_s: the test fails when its script takes longer.
        must_fail: it passes if the script ran to its end and missed its success metric.
    """

    name: str
    script: str
    timeout_s: float
    frequency: str
    num_gpus: int
    must_fail: bool = False

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> ReleaseTest:
        run = entry["run"]
        return cls(
            entry["name"], run["script"], run["timeout"], entry["frequency"], entry["cluster"]["gpus"],
            entry.get("must_fail", False),
        )  # fmt: skip

    def command(self, variables: Mapping[str, str]) -> list[str]:
        """The script's arguments, with this interpreter.

        Raises:
            ValueError: the script has a variable without a value.
        """
        for _, name, _, _ in string.Formatter().parse(self.script):
            if name is not None and name not in variables:
                raise ValueError(f"{self.name}: its script has {{{name}}}; say --set {name}=VALUE.")
        interpreter, *arguments = [part.format(**variables) for part in shlex.split(self.script)]
        return [sys.executable if interpreter == "python" else interpreter, *arguments]


def read_tests(path: Path = FILE) -> dict[str, ReleaseTest]:
    """All tests of the file, by name."""
    return {entry["name"]: ReleaseTest.from_entry(entry) for entry in yaml.safe_load(path.read_text())}


def chosen(tests: Mapping[str, ReleaseTest], names: Sequence[str]) -> list[ReleaseTest]:
    """The tests of these names; without a name, those that run nightly.

    Raises:
        ValueError: there is no such test.
    """
    for name in names:
        if name not in tests:
            raise ValueError(f"There is no release test {name!r}; there are {', '.join(tests)}.")
    return [tests[name] for name in names] or [test for test in tests.values() if test.frequency == NIGHTLY]


def run(test: ReleaseTest, command: Sequence[str], output: Path) -> str | None:
    """Runs one test; returns why it failed, or None. Its log and its figures go into `output`."""
    figures = output / f"{test.name}.json"
    figures.unlink(missing_ok=True)
    environment = os.environ | {"TEST_OUTPUT_JSON": str(figures)}
    status = run_within(command, test.timeout_s, output / f"{test.name}.log", environment)
    if status is None:
        return f"took longer than {test.timeout_s:g} s"
    return verdict(test, status, json.loads(figures.read_text()) if figures.is_file() else None)


def verdict(test: ReleaseTest, status: int, figures: Mapping[str, Any] | None) -> str | None:
    """Why a test failed, or None.

    Args:
        figures: as RLlib writes them with --as-release-test; None: the script wrote none.
    """
    if status:
        return f"ended with {status}"
    if figures is None:
        return "wrote no figures, so that nobody knows whether it missed its metric" if test.must_fail else None
    if figures["passed"][0] != test.must_fail:
        return None
    metric, best, target = (figures[key] for key in ("success_metric", "best_value", "target_value"))
    reached = "reached" if test.must_fail else "did not reach"
    return f"{metric} {reached} {target:g}: {best:.3f}"


def num_gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the tests; default: all that run nightly")
    parser.add_argument(
        "--set", nargs="+", type=_variable, default=[], metavar="NAME=VALUE", help="variables of scripts"
    )
    parser.add_argument("--output", type=Path, default=Path("outputs/release_tests"), help="folder of logs and figures")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    output, num_gpus, failed = args.output.resolve(), num_gpus_here(), 0
    try:
        tests = chosen(read_tests(), args.names)
        commands = [None if test.num_gpus > num_gpus else test.command(dict(args.set)) for test in tests]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for test, command in zip(tests, commands, strict=True):
        if command is None:
            print(f"{test.name}: not run, needs {test.num_gpus} GPUs and there are {num_gpus}", flush=True)
            continue
        begin = time.monotonic()
        why = run(test, command, output)
        failed += why is not None
        said = "passed" if why is None else f"FAILED, {why} (see {output / test.name}.log)"
        print(f"{test.name}: {said}, {time.monotonic() - begin:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
