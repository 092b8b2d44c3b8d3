"""Logs a run to MLflow from its folder, and skips what the store already has.

    rllib-arpo log-run ~/ray_results/ARPO_... --store http://mlflow:5000

The folder has everything, so this also works if the store was down during the run. A second call changes nothing.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.mlflow.results import trial_folders
from rllib_arpo.redaction import without_secrets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", help="folder of a trial, or of an experiment with its trials")
    add("--store", metavar="URI", help="default: MLFLOW_TRACKING_URI, or sqlite:///mlflow.db")
    add("--experiment", metavar="NAME", help="default: the one that the run's callback has or would choose")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    # They import mlflow.
    from rllib_arpo.mlflow.run_facts import read_facts
    from rllib_arpo.mlflow.run_log import RunLog
    from rllib_arpo.mlflow.store import one_line, open_store

    with command_errors():
        folders = trial_folders(Path(args.folder))
    for each in folders:
        try:
            store = open_store(args.store, args.experiment or read_facts(each).experiment)
            RunLog(each, store).log()
        except Exception as error:  # The stores behind MLflow raise errors of a dozen libraries.
            raise CommandError(f"{each}: MLflow did not take all of it ({one_line(error)}).") from error
        print(f"{each} is in MLflow: {without_secrets(store.uri)}")
    return 0
