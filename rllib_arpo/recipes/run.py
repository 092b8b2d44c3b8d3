"""Runs a CPU recipe with RLlib's example runner; where there is a GPU, engine and learner use it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.rllib.examples.utils import run_rllib_example_script_experiment
from ray.rllib.utils import force_list
from ray.tune.result import DONE, TRAINING_ITERATION

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.recipes.gpus import gpu_shares
from rllib_arpo.recipes.run_screen import SaysWhereResultsAre, say_what_runs
from rllib_arpo.terminal import say
from rllib_arpo.tracking import worker_lines
from rllib_arpo.tracking.transcripts import EvaluationTranscripts, say_before_and_after

if TYPE_CHECKING:
    from ray.tune import ResultGrid

#: The share of right answers in an evaluation.
EVALUATION_ACCURACY = "evaluation/env_runners/accuracy"


def run_recipe(
    config: ARPOConfig, args: argparse.Namespace, experiment_name: str, test_metric: str | None = None
) -> ResultGrid:
    """Runs `config` through RLlib's example runner, logged to MLflow.

    It first says what runs. At the end it shows the first and the last evaluation, if the callback
    `EvaluationTranscripts` kept them.

    Args:
        test_metric: with --as-test and --as-release-test, what has to reach --stop-reward in the last iteration; the
            run goes on to --stop-iters. Default: the mean return while sampling, which also ends the run.
    """
    from rllib_arpo.mlflow.callback import ARPOMLflowCallback

    say_what_runs(config, args, experiment_name)
    criteria: dict[str, Any] = {}
    if test_metric is not None and (args.as_test or args.as_release_test):
        criteria["stop"] = {TRAINING_ITERATION: args.stop_iters}
        criteria["success_metric"] = {test_metric: args.stop_reward}
    callbacks = [ARPOMLflowCallback(experiment_name=experiment_name), SaysWhereResultsAre()]
    with ray_of_run(args.num_cpus):
        lines = worker_lines.listen()
        use_gpus(config, args, ray.cluster_resources().get("GPU", 0))
        results = run_rllib_example_script_experiment(
            config, args, tune_callbacks=callbacks, keep_ray_up=True, **criteria
        )
        if lines is not None:
            for result in results:
                lines.wait_for(result.metrics or {})
    if args.no_tune:
        return results
    if not all((result.metrics or {}).get(DONE) for result in results):
        say("The run was interrupted.")
    elif EvaluationTranscripts in force_list(config.callbacks_class):
        say_before_and_after(results)
    return results


@contextmanager
def ray_of_run(num_cpus: int | None) -> Iterator[None]:
    """Ray as it ran before, or a Ray that ends with the run; `num_cpus`: of that one, None or 0: all of the machine."""
    own = not ray.is_initialized()
    if own:
        ray.init(num_cpus=num_cpus or None)
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def use_gpus(config: ARPOConfig, args: argparse.Namespace, num_gpus: float) -> None:
    """Divides the cluster's GPUs among the learner and the engines of a recipe that also runs without a GPU.

    RLlib's runner would give one to the learner and none to the engines. It takes the number of --num-gpus-per-learner,
    which is therefore set; a number that the user has given stays, and then nothing is divided.
    """
    if args.num_gpus_per_learner is not None:
        return
    learners = config.num_learners if args.num_learners is None else args.num_learners
    env_runners = config.num_env_runners if args.num_env_runners is None else args.num_env_runners
    shares = gpu_shares(num_gpus, learners, env_runners)
    if shares is None:
        return
    args.num_gpus_per_learner = shares.learner
    config.env_runners(num_gpus_per_env_runner=shares.env_runner)
    config.language_model(
        engine_kwargs={**config.engine_kwargs, "gpu_memory_utilization": shares.engine_memory},
        sleep_level=shares.sleep_level,
    )
