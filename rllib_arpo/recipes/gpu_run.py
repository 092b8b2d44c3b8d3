"""Runs a recipe for GPUs: checkpoints, further tries after failures, `--resume`, and the model at the end."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.result import DONE, TRAINING_ITERATION

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.results import number_at
from rllib_arpo.policy.export import export_model
from rllib_arpo.recipes.best_checkpoint import BEST, KeepBestCheckpoint, read_score
from rllib_arpo.recipes.run import EVALUATION_ACCURACY, ray_of_run
from rllib_arpo.recipes.run_screen import SaysFailures, say_what_runs
from rllib_arpo.recipes.run_state import KeepState, mend_state
from rllib_arpo.terminal import say
from rllib_arpo.tracking import worker_lines

if TYPE_CHECKING:
    from ray.tune import Result

#: The mean reward of a trajectory while sampling.
MEAN_REWARD = "env_runners/episode_return_mean"
#: How many of the last checkpoints are kept: one may be torn when a machine dies.
LAST_CHECKPOINTS = 2
#: In the folder of a run: the arguments of its command line, and the model that it saves at its end.
ARGUMENTS_FILE, MODEL = "arguments.json", "model"
#: Arguments that may change when a run is resumed.
_FREE = frozenset({"output", "resume", "num_cpus", "as_test", "as_release_test", "gpu_memory_gb"})


def run_gpu_recipe(config: ARPOConfig, args: argparse.Namespace, experiment_name: str) -> Path:
    """Trains with Ray Tune, logged to MLflow; returns the folder of the model, which lies in the folder `--output`.

    That folder also gets Tune's results, the last two checkpoints, and the best one: by the accuracy on --eval-data,
    or by the mean reward while sampling. The model is that of the best.

    Args:
        args: of a `gpu_recipe_parser`.
        experiment_name: in MLflow; with the algorithm also the default folder's name in outputs/.

    Raises:
        ValueError: the configuration is wrong, or the folder does not fit to --resume.
        RuntimeError: the run failed too often, was interrupted, or missed its reward (--as-test).
    """
    output = Path(args.output or os.path.abspath(f"outputs/{experiment_name}-{args.algo}"))
    _check_output(output, args)
    say_what_runs(config, args, experiment_name, output)
    result = _train(config, args, output, experiment_name)
    if result.error is not None:
        raise RuntimeError(f"The run failed (--max-failures {args.max_failures}); --resume goes on.") from result.error
    if not (result.metrics or {}).get(DONE):
        raise RuntimeError("The run was interrupted; the same command with --resume goes on.")
    model = _save_model(result, output)
    _report_test(result, args)
    return model


def _train(config: ARPOConfig, args: argparse.Namespace, output: Path, experiment_name: str) -> Result:
    """Tune's result of the run. Leaves a Ray as it is that ran before."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Tune's newer output has a table even if it is to say nothing.
    with ray_of_run(args.num_cpus):
        lines = worker_lines.listen()
        config.copy(copy_frozen=False).validate()  # Tune would try a wrong one again and again.
        tuner = _restored(config, output) if args.resume else _new(config, args, output, experiment_name)
        result = tuner.fit()[0]
        if lines is not None:
            lines.wait_for(result.metrics or {})
        return result


def _check_output(output: Path, args: argparse.Namespace) -> None:
    """A run is begun in a folder without one, and resumed with the arguments that it was begun with."""
    begun = (output / ARGUMENTS_FILE).is_file()
    if args.resume and not begun:
        raise ValueError(f"--resume: there is no run in {output}.")
    if not args.resume and begun:
        raise ValueError(f"--output {output}: there is a run already; go on with it by --resume, or name another.")
    if not args.resume:
        return
    before = json.loads((output / ARGUMENTS_FILE).read_text())
    for name, value in _arguments(args).items():
        if value != before.get(name):
            option = name.replace("_", "-")
            raise ValueError(f"--{option} {value}: the run in {output} was begun with {before.get(name)}.")


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name not in _FREE}


def _new(config: ARPOConfig, args: argparse.Namespace, output: Path, experiment_name: str) -> tune.Tuner:
    from rllib_arpo.mlflow.callback import ARPOMLflowCallback

    metric = EVALUATION_ACCURACY if args.eval_data else MEAN_REWARD
    mlflow = ARPOMLflowCallback(experiment_name=experiment_name)
    tuner = tune.Tuner(
        config.algo_class,
        param_space=config,
        run_config=tune.RunConfig(
            name=output.name,
            storage_path=str(output.parent),
            stop={MEAN_REWARD: args.stop_reward, TRAINING_ITERATION: args.stop_iters},
            verbose=args.verbose,
            callbacks=[mlflow, KeepBestCheckpoint(metric), KeepState(), SaysFailures()],
            failure_config=tune.FailureConfig(max_failures=args.max_failures),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=LAST_CHECKPOINTS, checkpoint_frequency=args.checkpoint_freq, checkpoint_at_end=True
            ),
        ),
    )
    (output / ARGUMENTS_FILE).write_text(json.dumps(_arguments(args), indent=1))
    return tuner


def _restored(config: ARPOConfig, output: Path) -> tune.Tuner:
    """Tune takes its own record of the configuration, or `config` where the run was killed before it made one.

    Raises:
        ValueError: the run was killed at its very beginning, while Tune wrote its first record.
    """
    mend_state(output)
    return tune.Tuner.restore(str(output), config.algo_class, resume_errored=True, param_space=config)


def _save_model(result: Result, output: Path) -> Path:
    """Exports the model of the best checkpoint, or of the last one if none has a score."""
    best, last = read_score(output), result.checkpoint.path
    export_model(output / BEST if best else last, output / MODEL)
    of_best = best and f"iteration {best['iteration']} (the best {best['metric']}, {best['value']:.3f})"
    say(f"The model of {of_best or 'the last checkpoint'} is in {output / MODEL}.")
    say(f"That of the last checkpoint: rllib-arpo export {last} FOLDER")
    return output / MODEL


def _report_test(result: Result, args: argparse.Namespace) -> None:
    """What RLlib's example runner does with --as-test and --as-release-test, whose form of the file it keeps.

    Raises:
        RuntimeError: with --as-test alone, the last mean reward is less than --stop-reward.
    """
    if not (args.as_test or args.as_release_test):
        return
    found = number_at(result.metrics, MEAN_REWARD)
    reached = math.nan if found is None else found
    passed = reached >= args.stop_reward
    say(f"{MEAN_REWARD}: {reached}, of {args.stop_reward:g}: {'reached' if passed else 'not reached'}.")
    if args.as_release_test:
        figures = {
            "passed": [passed], "not_passed": [not passed], "success_metric": MEAN_REWARD, "best_value": reached,
            "target_value": args.stop_reward, "time_taken": result.metrics["time_total_s"],
        }  # fmt: skip
        Path(os.environ["TEST_OUTPUT_JSON"]).write_text(json.dumps(figures))
    elif not passed:
        raise RuntimeError(f"--as-test: {MEAN_REWARD} is {reached}, and should be {args.stop_reward:g}.")
