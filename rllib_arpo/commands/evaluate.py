"""Scores models on tasks, with the sampler and the tools of training.

    rllib-arpo evaluate --model FOLDER --tasks gsm8k --data gsm8k=test.jsonl --samples 5 --limit 50

The command prints a table with an interval for every metric, and writes `summary.json` and a record (docs/watch.md)
into the folder --output. Each finished question is a file of the record. If the command is killed, run it again: it
continues where it stopped, and repeats questions that a broken tool (such as a judge or a server that did not answer)
or the engine ended. `rllib-arpo show` draws the questions. `--compare CHECKPOINT` adds a model and its paired
difference to the first one; `--baselines direct,tools` asks the first model without tools and with tools.

`--suite math,knowledge` asks the tasks of the paper's suites. With several tasks the command also prints a table of
methods by tasks, with their average. `--model METHOD=MODEL` names a model's row; models with the same METHOD are seeds,
and the table averages their scores. Models that have results in the folder are not asked again.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rllib_arpo.errors import INTERRUPTED, command_errors
from rllib_arpo.evaluation.arguments import MODEL_HELP, add_sampling_arguments, names_in
from rllib_arpo.evaluation.metrics import arm_metrics
from rllib_arpo.evaluation.model_folders import split_methods
from rllib_arpo.evaluation.plan import STYLES
from rllib_arpo.evaluation.report import SUMMARY, method_rows, print_report, task_reports, write_summary
from rllib_arpo.evaluation.runner import answered
from rllib_arpo.redaction import without_secrets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", action="append", required=True, metavar="[METHOD=]MODEL",
        help=f"{MODEL_HELP}; repeat it to compare models; models with one METHOD share a row")  # fmt: skip
    add("--compare", action="append", default=[], help="one more model; the same as one more --model")
    add("--baselines", default="", help=f"also ask the first model in these styles: {', '.join(STYLES)}")
    add("--output", default="evaluation", help="folder for the results; an evaluation that is there continues")
    add("--no-mlflow", dest="mlflow", action="store_false", help="do not log to MLflow")
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
    with command_errors():
        names, methods = split_methods([*args.model, *args.compare])
    check = _check_mlflow if args.mlflow else lambda: None
    with answered(args, names, names_in(args.baselines), check=check) as (settings, folder, stored):
        arms = [arm for arm, _ in stored]
        metrics = {arm.name: arm_metrics(results.questions()) for arm, results in stored}
        reports, rows = task_reports(arms, metrics, settings), method_rows(arms, metrics, methods)
        write_summary(folder / SUMMARY, arms, reports, rows, settings, argv, time.perf_counter() - begin)
        print_report(reports, rows if len(reports) > 1 or methods else ())
        print(
            f"The record and the summary are in {folder}; `rllib-arpo show {folder}` draws the questions."
            f" This command took {time.perf_counter() - begin:.0f} s."
        )
        if args.mlflow:
            _log_to_mlflow(folder)


def _check_mlflow() -> None:
    """Opens a local store before the engine starts. A server is only needed at the end.

    Raises:
        ValueError: the local store cannot be opened.
    """
    from rllib_arpo.mlflow.run_log import EXPERIMENT
    from rllib_arpo.mlflow.store import is_local, open_store, store_uri

    if is_local(store_uri()):
        open_store(experiment=EXPERIMENT)


def _log_to_mlflow(folder: Path) -> None:
    from rllib_arpo.mlflow.run_log import log_folder
    from rllib_arpo.mlflow.store import one_line, store_uri

    try:
        log_folder(folder)
    except Exception as error:  # The stores behind MLflow raise errors of a dozen libraries.
        command = f"`rllib-arpo log-run {folder} --store {without_secrets(store_uri())}`"
        print(f"MLflow did not take the whole evaluation ({one_line(error)}): log it with {command}.", file=sys.stderr)
