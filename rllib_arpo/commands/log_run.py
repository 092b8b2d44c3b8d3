"""Logs the folder of a run, or of an evaluation, to MLflow: whatever the store does not have yet.

    rllib-arpo log-run ~/ray_results/ARPO_... --store http://mlflow:5000
    rllib-arpo log-run evaluation/ --store sqlite:///mlflow.db

It needs no other file, so it also logs runs whose store was down. A second call changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ray.tune.result import EXPR_RESULT_FILE

from rllib_arpo.errors import CommandError
from rllib_arpo.evaluation.summary import SUMMARY
from rllib_arpo.record.recorder import RECORD_FOLDER
from rllib_arpo.redaction import without_secrets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", help="of a trial, of an experiment with its trials, or the --output of an evaluation")
    add("--store", metavar="URI", help="default: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db")
    add("--experiment", metavar="NAME", help="default: that of the run's callback, or as the callback chooses it")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status.

    Raises:
        CommandError: the folder is not one of a run, or the store does not take it.
    """
    # They import mlflow.
    from rllib_arpo.mlflow import evaluation_log, run_facts, run_log
    from rllib_arpo.mlflow.store import one_line, open_store

    folder = Path(args.folder)
    is_evaluation = (folder / SUMMARY).is_file()
    logged = [folder] if is_evaluation else _trials(folder)
    for each in logged:
        try:
            if is_evaluation:
                store = open_store(args.store, args.experiment or evaluation_log.EXPERIMENT)
                evaluation_log.log_evaluation(each, store)
            else:
                store = open_store(args.store, args.experiment or run_facts.read_facts(each).experiment)
                run_log.log_run(each, store)
        except Exception as error:  # The stores behind MLflow raise errors of a dozen libraries.
            raise CommandError(f"{each}: not all of it is in MLflow ({one_line(error)}).") from error
        print(f"{each} is in MLflow: {without_secrets(store.uri)}")
    return 0


def _trials(folder: Path) -> list[Path]:
    names = (EXPR_RESULT_FILE, RECORD_FOLDER)
    if any((folder / name).exists() for name in names):
        return [folder]
    found = sorted({path.parent for name in names for path in folder.glob(f"*/{name}")})
    if not found:
        missing = ", no ".join((*names, SUMMARY))
        raise CommandError(f"{folder}: not the folder of a run: it has no {missing}.")
    return found
