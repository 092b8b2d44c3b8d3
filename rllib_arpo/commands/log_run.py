"""Logs a run or an evaluation to MLflow from its folder, and skips what the store already has.

    rllib-arpo log-run ~/ray_results/ARPO_... --store http://mlflow:5000
    rllib-arpo log-run evaluation/ --store sqlite:///mlflow.db

The folder has everything, so this also works if the store was down during the run. A second call changes nothing.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.evaluation.report import SUMMARY
from rllib_arpo.plots.run_data import trial_folders
from rllib_arpo.redaction import without_secrets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", help="folder of a trial, of an experiment with its trials, or of an evaluation (its --output)")
    add("--store", metavar="URI", help="default: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db")
    add("--experiment", metavar="NAME", help="default: the one that the run's callback has or would choose")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    # They import mlflow.
    from rllib_arpo.mlflow.run_log import log_folder
    from rllib_arpo.mlflow.store import one_line

    folder = Path(args.folder)
    with command_errors():
        folders = [folder] if (folder / SUMMARY).is_file() else trial_folders(folder)
    for each in folders:
        try:
            store = log_folder(each, args.store, args.experiment)
        except Exception as error:  # The stores behind MLflow raise errors of a dozen libraries.
            raise CommandError(f"{each}: MLflow did not take all of it ({one_line(error)}).") from error
        print(f"{each} is in MLflow: {without_secrets(store.uri)}")
    return 0
