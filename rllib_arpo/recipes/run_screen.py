"""The screen of a recipe: its first lines say what runs, where the results go, and what the columns mean."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from rllib_arpo.core.branching import children_per_fork
from rllib_arpo.errors import CHECKS, INTERRUPTED, WRONG
from rllib_arpo.redaction import without_secrets
from rllib_arpo.terminal import RunTerminal, about, say, short_path
from rllib_arpo.tracking.machine import machine_in_words

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

    from rllib_arpo.arpo_config import ARPOConfig

#: The folder of the logs.
LOGS = Path("outputs")
#: Finds the line of a traceback that names the error.
ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")
#: Begins each failure in Tune's file of failures.
FAILURE = "Failure # "
COLUMNS = (
    about("columns", "reward, acc(uracy), tools: a trajectory's mean; dH: how much the entropy rises after a tool's"),
    about("", "response; forks: of a question; roll(out), upd(ate) and sync of the weights: seconds"),
)


@contextmanager
def run_terminal(args: argparse.Namespace, experiment: str) -> Iterator[None]:
    """Leaves the terminal to the run's own lines and sends all other output to a log file, except with --verbose.

    The log also gets a line of progress now and then. SIGINT and SIGTERM end the process with one line and the exit
    status `INTERRUPTED`. A wrong configuration (`CHECKS`) ends it with one sentence and the status `WRONG`, and the log
    has the traceback.

    Args:
        args: the recipe's arguments.
        experiment: the beginning of the log's name.
    """
    log = LOGS / f"{experiment}-{time.strftime('%Y-%m-%d_%H-%M-%S')}.log"
    with sigterm_as_sigint(), nullcontext() if args.verbose else RunTerminal(log):
        if not args.verbose:
            say(f'{args.algo}, experiment "{experiment}". Output of other packages: {log} (--verbose 1: here)')
        try:
            yield
        except CHECKS as error:
            traceback.print_exc()
            say(f"error: {without_secrets(str(error))}")
            sys.exit(WRONG)
        except KeyboardInterrupt as interrupt:
            say(str(interrupt) or "Interrupted.")
            sys.stdout.flush()
            # Ray and MLflow have ended. The interpreter would take seconds more to unload its modules.
            os._exit(INTERRUPTED)


@contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """Makes SIGTERM (from SLURM, Kubernetes or `kill`) interrupt like Ctrl-C. Ray would abort the process.

    `ray.init` sets its own handler, so set this one again after it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_args: object) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # As shells start jobs in the background.
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say_what_runs(config: ARPOConfig, args: argparse.Namespace, experiment: str, folder: Path) -> None:
    """Says what a recipe runs before it starts; `folder` is where its results go."""
    lines = [
        about("trains", f"on {config.env}, seed {config.seed}: {length_in_words(config, args)}"),
        about("trees", trees_in_words(config)),
        about("policy", f"{short_path(config.model_name_or_path)}, {config.dtype}"),
        about("machine", machine_in_words()),
        about("MLflow", mlflow_in_words(experiment)),
        *COLUMNS,
        about("results", short_path(folder)),
    ]
    say("\n".join(lines))


def length_in_words(config: ARPOConfig, args: argparse.Namespace) -> str:
    """E.g. "8 iterations of 6 questions, fewer if the mean reward is 0.95"."""
    iterations = f"{args.stop_iters} iteration{'s' if args.stop_iters != 1 else ''}"
    return f"{iterations} of {config.questions_per_batch} questions, fewer if the mean reward is {args.stop_reward:g}"


def trees_in_words(config: ARPOConfig) -> str:
    """E.g. "M = 8 trajectories a question, N = 2 of them from the prompt, forks: threshold, Z = 3 at a time"."""
    size = f"M = {config.num_rollouts} trajectories a question"
    if config.branching == "never":
        return f"{size}, no forks"
    chosen = config.pre_monitoring_sensitivity is not None
    begin = "N chosen for each question" if chosen else f"N = {config.num_initial_rollouts} of them from the prompt"
    width = children_per_fork(config.branch_width, config.num_rollouts, config.num_initial_rollouts)
    return f"{size}, {begin}, forks: {config.branching}, Z = {width} at a time"


def mlflow_in_words(experiment: str) -> str:
    """Where the run is in MLflow: the command that shows the local store, or the address of the user's server."""
    program = short_path(Path(sys.executable).with_name("mlflow"))
    local = f"{program} ui --backend-store-uri sqlite:///mlflow.db"
    return f'{without_secrets(os.environ.get("MLFLOW_TRACKING_URI") or local)}, experiment "{experiment}"'


class SaysFailures(tune.Callback):
    """Says that a run has failed and goes on. The log has the traceback, which Tune prints."""

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        # Tune writes all failures of a trial into one file.
        last = Path(trial.error_file).read_text().rpartition(FAILURE)[2]
        lines = last.strip().splitlines() or ["no message"]
        # An actor that has died adds advice behind its error.
        error = next((line for line in reversed(lines) if ERROR.match(line)), lines[-1])
        say(f"The run failed ({without_secrets(error)}); it goes on at its last checkpoint.")
