"""The options of recipes: those of every run, and those that choose the algorithm, the fork rule and the seed."""

import argparse
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ray.tune.registry import get_trainable_cls

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.branching import AUTO, rules_with
from rllib_arpo.options.adaptive_rollout import ADAPTIVE_ROLLOUT
from rllib_arpo.options.tables import OPTIONS

ALGORITHMS = ("ARPO", "GRPO", "DAPO", "ReinforcePlusPlus", "AEPO", "TreeGRPO")
#: Keys of the configuration that are options of every recipe, by the type of their values.
CONFIG_KEYS = {
    int: (
        "num_env_runners", "num_envs_per_env_runner", "num_learners",
        "evaluation_interval", "evaluation_duration", "evaluation_num_env_runners",
    ),
    float: ("num_cpus_per_learner", "num_gpus_per_learner"),
}  # fmt: skip


def recipe_parser(stop_reward: float, stop_iters: int, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the options of RLlib's examples that have an effect here, and those for resuming a run.

    Args:
        stop_reward, stop_iters: defaults.
        defaults: further defaults; an option without one leaves its key to the recipe's configuration.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--algo", choices=ALGORITHMS, default=ALGORITHMS[0], help="ARPO, or a baseline")
    add("--stop-reward", type=float, default=stop_reward, help="the mean reward at which the run ends")
    add("--stop-iters", "--iterations", type=int, default=stop_iters, help="the iteration after which the run ends")
    add("--output", type=os.path.abspath, help="the run's folder; default: a new one in ~/ray_results")
    add("--resume", action="store_true", help="go on with the run in --output at its newest whole checkpoint")
    add("--max-failures", type=int, default=0, help="how often a run may fail and go on at its last checkpoint")
    add("--checkpoint-freq", type=int, default=0, help="iterations between checkpoints; 0: none")
    add("--checkpoint-at-end", action="store_true", help="also keep a checkpoint of the last iteration")
    add("--num-cpus", type=int, default=0, help="CPUs of the Ray that the run starts; 0: all of this machine")
    add("--log-level", choices=("DEBUG", "INFO", "WARN", "ERROR"), help="RLlib's log level")
    add("--verbose", type=int, default=0, help="1 or 2 shows Tune's own tables")
    for kind, keys in CONFIG_KEYS.items():
        for key in keys:
            add(_flag(key), type=kind, help=f"the key `{key}` of the configuration; default: the recipe's value")
    parser.set_defaults(**defaults)
    return parser


#: The overlong penalty falls over one part in this many of the longest response, as in DAPO's paper (4,096 of 20,480).
OVERLONG_SHARE = 5


def _value(text: str) -> float | str:
    """A number if the text is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


#: Options of `ARPOConfig` that are on the command line under the same names.
ARM_OPTIONS = (
    "num_initial_rollouts", "branching", "branch_width", "entropy_window", "entropy_estimator",
    "entropy_normalization", "entropy_baseline", "entropy_baseline_questions", "branch_base_probability",
    "branch_entropy_weight", "branch_threshold", "branch_share", "random_fork_probability",
    "branch_depth", "consecutive_fork_penalty", "pre_monitoring_sensitivity", "budget_allocation", "attribution",
    "baseline", "prioritized_share", "record_share",
)  # fmt: skip
#: Further keys of the configuration that are on the command line.
SIZES = ("num_rollouts", "questions_per_batch", "questions_per_minibatch", "num_epochs")


def add_arm_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the arguments for running a recipe with several algorithms (RLlib's `--algo`), fork rules and seeds."""
    parser.add_argument("--seed", type=int, default=0, help="decides the order of the questions and the random forks")
    parser.add_argument("--num-rollouts", type=int, help="M, trajectories per question; default: the recipe's value")
    for name in ARM_OPTIONS:
        doc = OPTIONS[name].doc.replace("%", "%%")
        parser.add_argument(_flag(name), type=_value, help=f"{doc} Default: the recipe's, or the algorithm's")
    parser.add_argument("--questions-per-batch", type=int, help="questions per update; default: the recipe's value")
    parser.add_argument(
        "--questions-per-minibatch",
        type=int,
        help="questions per optimizer step; default: the recipe's value, otherwise the whole batch, and at most half "
        "of it with an algorithm that needs several steps",
    )
    parser.add_argument("--num-epochs", type=int, help="how often an update passes over its batch; default: 1")
    return parser


def arm_config(
    args: argparse.Namespace,
    *,
    num_rollouts: int,
    branch_threshold: float | str = AUTO,
    max_response_tokens: int,
    questions_per_batch: int,
    questions_per_minibatch: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ARPOConfig:
    """The configuration of the algorithm and the fork rule that the command line names.

    The settings that an algorithm has by itself are fitted to the recipe's sizes: an overlong penalty (DAPO) begins a
    fifth of the longest response before its end, a minibatch divides the batch, and is at most half of it if an update
    must have several steps (AEPO).

    Args:
        args: what a parser with the arguments of `add_arm_args` has read.
        num_rollouts: M, unless the command line has it.
        branch_threshold: tau, unless the command line has it or the fork rule has none.
        max_response_tokens: as in `ARPOConfig`.
        questions_per_batch, questions_per_minibatch: unless the command line has them; None: a whole batch.
        settings: further settings of the recipe; a setting in which the algorithm differs from ARPO stays the
            algorithm's.

    Raises:
        ValueError: an option is about forks, but the algorithm does not fork.
    """
    given = {
        name: None if value == "None" else value
        for name in (*ARM_OPTIONS, *SIZES)
        if (value := getattr(args, name)) is not None
    }
    config = _algorithm_config(args.algo, settings or {})
    sizes = {
        "num_rollouts": num_rollouts,
        "max_response_tokens": max_response_tokens,
        "questions_per_batch": questions_per_batch,
    }
    _set(config, sizes | given)
    _check_forks(config, given, args.algo)
    recipes = _update_settings(config, questions_per_minibatch)
    if config.branching in rules_with("branch_threshold"):
        recipes["branch_threshold"] = branch_threshold
    _set(config, {name: value for name, value in recipes.items() if name not in given})
    return config


def _update_settings(config: ARPOConfig, questions_per_minibatch: int | None) -> dict[str, Any]:
    """The minibatch and the overlong penalty, fitted to the recipe's sizes."""
    batch = config.questions_per_batch
    most = min(questions_per_minibatch or batch, batch // 2 if config.keep_clipped_gradient else batch)
    settings = {"questions_per_minibatch": next((n for n in range(most, 0, -1) if batch % n == 0), 1)}
    if config.overlong_buffer_tokens is not None:
        settings["overlong_buffer_tokens"] = config.max_response_tokens // OVERLONG_SHARE
    return settings


def _check_forks(config: ARPOConfig, given: Mapping[str, Any], algorithm: str) -> None:
    of_forks = [name for name in given if name in set(ARM_OPTIONS) & ADAPTIVE_ROLLOUT.keys() - {"branching"}]
    if config.branching == "never" and of_forks:
        option = f"{_flag(of_forks[0])} {given[of_forks[0]]}"
        raise ValueError(f"{option}: --algo {algorithm} with branching='never' forks nothing.")


def _set(config: ARPOConfig, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        setattr(config, name, value)


def _algorithm_config(name: str, settings: Mapping[str, Any]) -> ARPOConfig:
    """The configuration of an algorithm with these settings, except those in which it differs from ARPO by itself."""
    import rllib_arpo

    rllib_arpo.register()  # Tune forgets the names at `ray.shutdown()`.
    config: ARPOConfig = get_trainable_cls(name).get_default_config()
    arpo = ARPOConfig()
    own = {option for option in OPTIONS if getattr(config, option) != getattr(arpo, option)}
    taken = {key: value for key, value in settings.items() if key not in own}
    _set(config, taken)
    return config


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
