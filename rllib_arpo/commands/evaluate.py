"""Scores models on tasks, with the sampler and the tools of training.

    rllib-arpo evaluate --model FOLDER --tasks gsm8k --data gsm8k=test.jsonl --samples 5 --limit 50

The command prints a table with an interval for every metric, and writes `summary.json` and a record (docs/watch.md)
into the folder --output. Each finished question is a file of the record. If the command is killed, run it again: it
continues where it stopped, and repeats questions that a broken tool (such as a judge or a server that did not answer)
or the engine ended. `rllib-arpo show` draws the questions. Each further `--model` gets a column, and its paired
difference to the first one.

`--suite math,knowledge` asks the tasks of the paper's suites. Models that have results in the folder are not asked
again.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from rllib_arpo.errors import INTERRUPTED
from rllib_arpo.evaluation.arguments import MODEL_HELP, add_sampling_arguments
from rllib_arpo.evaluation.metrics import arm_metrics
from rllib_arpo.evaluation.report import SUMMARY, print_report, task_reports, write_summary
from rllib_arpo.evaluation.runner import answered


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", action="append", required=True, help=f"{MODEL_HELP}; repeat it to compare models")
    add("--output", default="evaluation", help="folder for the results; an evaluation that is there continues")
    add_sampling_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    try:
        _evaluate(args, argv)
    except KeyboardInterrupt:
        print(f"\nInterrupted. {args.output} has the finished questions; the same command continues.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _evaluate(args: argparse.Namespace, argv: Sequence[str]) -> None:
    begin = time.perf_counter()
    with answered(args, args.model) as (settings, folder, stored):
        arms = [arm for arm, _ in stored]
        metrics = {arm.name: arm_metrics(results.questions()) for arm, results in stored}
        reports = task_reports(arms, metrics, settings)
        write_summary(folder / SUMMARY, arms, reports, settings, argv, time.perf_counter() - begin)
        print_report(reports)
        print(
            f"The record and the summary are in {folder}: `rllib-arpo show {folder}` draws the questions."
            f" This command took {time.perf_counter() - begin:.0f} s."
        )
