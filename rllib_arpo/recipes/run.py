"""Runs a recipe with Ray Tune: checkpoints, new tries after failures, `--resume`, and the model at the end."""

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.result import DONE, TRAINING_ITERATION

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.envs.support.data_files import read_json
from rllib_arpo.files import take_lock, write_json
from rllib_arpo.policy.module_checkpoint import export_model
from rllib_arpo.recipes.checkpoints import BEST, TRIAL, WHOLE, KeepCheckpoints, last_iteration, read_score, take_newest
from rllib_arpo.recipes.command_line import CONFIG_KEYS
from rllib_arpo.recipes.gpus import use_gpus
from rllib_arpo.recipes.run_screen import SaysFailures, say_what_runs, sigterm_as_sigint
from rllib_arpo.redaction import comparable
from rllib_arpo.terminal import say, short_path
from rllib_arpo.tracking.console import ConsoleCallback

#: The share of right answers in an evaluation, and the mean reward of a trajectory while sampling.
EVALUATION_ACCURACY, MEAN_REWARD = "evaluation/env_runners/accuracy", "env_runners/episode_return_mean"
#: Where runs without --output go: Tune's own folder.
RESULTS = Path("~/ray_results")
#: How many of the last checkpoints are kept: one may be torn when a machine dies.
LAST_CHECKPOINTS = 2
#: In the folder of a run: the arguments of its command line, and the model that it saves at the end.
ARGUMENTS_FILE, MODEL = "arguments.json", "model"
#: In the folder of a run: the file that its process locks.
LOCK = "lock"
#: Arguments that may change when a run is resumed: those about its end, machines, failures and output.
_FREE = frozenset(
    {"output", "resume", "stop_iters", "stop_reward", "verbose", "log_level", "max_failures"}
    | {"num_cpus", "num_threads", "gpu_memory_utilization", "max_tokens_per_pass"}
    | {"num_learners", "num_cpus_per_learner", "num_gpus_per_learner", "num_gpus_per_env_runner"}
    | {"num_env_runners", "num_envs_per_env_runner", "evaluation_num_env_runners"}
)


def run_recipe(config: ARPOConfig, args: argparse.Namespace, experiment_name: str, *, save_model: bool = False) -> Path:
    """Trains with Ray Tune, logged to MLflow; returns the run's folder.

    The folder has Tune's results in `trial`. If checkpoints are asked for, it also keeps the last two and the best one,
    by the accuracy of evaluations or by the mean reward while sampling.

    Args:
        args: what a `recipe_parser` has read.
        experiment_name: the name of the experiment in MLflow.
        save_model: export the model of the best checkpoint into the run's folder.

    Raises:
        ValueError: the configuration is wrong, the folder does not fit --resume, or another process uses it.
        RuntimeError: the run failed too often.
        KeyboardInterrupt: SIGINT or SIGTERM; its message says how the run goes on.
    """
    # Runs that start in the same second are different processes.
    own = f"{args.algo}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}"
    output = Path(args.output or RESULTS.expanduser() / own)
    _check_output(output, args)
    with _held(output):
        _run(config, args, output, experiment_name, save_model)
    return output


def _run(config: ARPOConfig, args: argparse.Namespace, output: Path, experiment_name: str, save_model: bool) -> None:
    say_what_runs(config, args, experiment_name, output)
    stop = {TRAINING_ITERATION: args.stop_iters, MEAN_REWARD: args.stop_reward}
    try:
        with ray_of_run(args.num_cpus), sigterm_as_sigint():
            use_arguments(config, args, ray.cluster_resources().get("GPU", 0))
            config.copy(copy_frozen=False).validate()  # Tune would try a wrong one again and again.
            results = _train(config, args, output, experiment_name, stop, save_model)
        _check_end(results[0], args, output)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"The run was interrupted; {_goes_on(args, output)}.") from None
    say(f"Trees and transcripts: rllib-arpo show {short_path(results[0].path)}")
    if save_model:
        _save_model(results[0], output)


@contextmanager
def ray_of_run(num_cpus: int | None) -> Iterator[None]:
    """The Ray that runs already, or one that ends with the run and has `num_cpus` (None or 0: those of the machine).

    An interrupt ends the second kind at once. In the first, Tune handles it and gives the trial's actor ten seconds.
    """
    if ray.is_initialized():
        yield
        return
    ray.init(num_cpus=num_cpus or None)
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # SIGINT raises KeyboardInterrupt in `tune.run` as anywhere.
    try:
        yield
    finally:
        del os.environ["TUNE_DISABLE_SIGINT_HANDLER"]
        ray.shutdown()


def use_arguments(config: ARPOConfig, args: argparse.Namespace, num_gpus: float) -> None:
    """Applies the command line to the configuration, and divides the GPUs if the recipe leaves that open."""
    for key in ("log_level", *chain(*CONFIG_KEYS.values())):
        if (value := getattr(args, key)) is not None:
            setattr(config, key, value)
    if args.num_gpus_per_learner is None:
        use_gpus(config, num_gpus)


def _train(
    config: ARPOConfig,
    args: argparse.Namespace,
    output: Path,
    experiment_name: str,
    stop: Mapping[str, float],
    save_model: bool,
) -> tune.ResultGrid:
    """Tune's results of one trial. A resumed run goes on in the same folder at its newest checkpoint."""
    from rllib_arpo.mlflow.callback import ARPOMLflowCallback

    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Tune's newer output prints a table even at verbose=0.
    newest = take_newest(output) if args.resume else None
    if newest is not None:
        say(f"The run goes on at {newest.name}.")
    write_json(output / ARGUMENTS_FILE, _arguments(args))
    mlflow = ARPOMLflowCallback(experiment_name=experiment_name)
    checkpoints = KeepCheckpoints(EVALUATION_ACCURACY if config.evaluation_interval else MEAN_REWARD)
    try:
        analysis = tune.run(
            config.algo_class,
            config=config,
            name=output.name,
            storage_path=str(output.absolute().parent),
            trial_dirname_creator=lambda _trial: TRIAL,
            restore=None if newest is None else str(newest.absolute()),
            stop=dict(stop),
            verbose=args.verbose,
            callbacks=[ConsoleCallback(), mlflow, checkpoints, SaysFailures()],
            max_failures=args.max_failures,
            raise_on_failed_trial=False,
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=LAST_CHECKPOINTS,
                checkpoint_frequency=args.checkpoint_freq,
                checkpoint_at_end=args.checkpoint_at_end or save_model,
            ),
        )
    except KeyboardInterrupt:
        checkpoints.interrupt()
        mlflow.interrupt()
        raise
    return tune.ResultGrid(analysis)


def _check_output(output: Path, args: argparse.Namespace) -> None:
    """Refuses to begin a run in another one's folder, and to resume one that has ended or had other arguments."""
    begun = (output / ARGUMENTS_FILE).is_file()
    if args.resume and not (args.output and begun):
        raise ValueError(f"--resume: --output must be the folder of a run, and is {args.output}.")
    if not args.resume and begun:
        raise ValueError(f"--output {output}: there is a run already; go on with it by --resume, or name another.")
    if not args.resume:
        return
    before = read_json(output / ARGUMENTS_FILE)
    for name, value in _arguments(args).items():
        if value != before.get(name):
            option = name.replace("_", "-")
            raise ValueError(f"--{option} {value}: the run in {output} was begun with {before.get(name)}.")
    if (done := last_iteration(output)) >= args.stop_iters:
        raise ValueError(f"--stop-iters {args.stop_iters}: the run in {output} has done {done}; ask for more to go on.")


@contextmanager
def _held(output: Path) -> Iterator[None]:
    """Keeps other processes out of the folder of a run."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / LOCK).open("a") as lock:
        take_lock(lock, f"--output {output}: another process trains here.")
        yield


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    return {name: comparable(value, name) for name, value in vars(args).items() if name not in _FREE}


def _check_end(result: tune.Result, args: argparse.Namespace, output: Path) -> None:
    if result.error is not None:
        end = _goes_on(args, output)
        raise RuntimeError(f"The run failed (--max-failures {args.max_failures}); {end}.") from result.error
    if not (result.metrics or {}).get(DONE):
        raise KeyboardInterrupt


def _goes_on(args: argparse.Namespace, output: Path) -> str:
    if not any(output.rglob(WHOLE)):
        return "there is no checkpoint"
    return f"the same command with {'' if args.output else f'--output {short_path(output)} '}--resume goes on"


def _save_model(result: tune.Result, output: Path) -> None:
    """Exports the model of the best checkpoint, or of the last one if none has a score."""
    best, last = read_score(output), result.checkpoint.path
    export_model(output / BEST if best else last, output / MODEL)
    of_best = best and f"iteration {best['iteration']} (the best {best['metric']}, {best['value']:.3f})"
    say(f"The model of {of_best or 'the last checkpoint'} is in {short_path(output / MODEL)}.")
    say(f"The model of the last checkpoint: rllib-arpo export {short_path(last)} FOLDER")
