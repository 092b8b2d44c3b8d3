"""The common parts of the tuned examples: running them, the command line for GPUs, and the settings of ARPO's authors.

The settings are those of the scripts in github.com/RUC-NLPIR/ARPO. All differences:
  - The entropy is over the whole vocabulary and of the tokens after the tool's response; theirs is over the ten
    likeliest tokens of the segment before it. Every root has a baseline of its own; theirs is kept by place in the
    batch and never cleared.
  - A fork keeps its root's baseline; in their code it takes its own first segment.
  - A tool counts for the reward only if it ran. Mathematics is compared exactly; theirs by F1 over words.
  - The engine's numerics are corrected for, token by token (`importance_cap`).
  - The deep search recipe trains on whatever `--data` names, for two epochs of 10,000 questions; theirs on the 1,000
    questions of hard_search_1k.parquet, for five epochs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment
from ray.rllib.utils import force_list
from ray.tune.registry import get_trainable_cls
from ray.tune.result import TRAINING_ITERATION

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.tracking.transcripts import EvaluationTranscripts, print_before_and_after

if TYPE_CHECKING:
    from ray.tune import ResultGrid

#: Two epochs of the authors' 10,000 questions at 128 questions an iteration.
TWO_EPOCHS = 156
STOP_REWARD = 0.6
#: The share of right answers in an evaluation.
EVALUATION_ACCURACY = "evaluation/env_runners/accuracy"
#: Largest number of sampled turns; usually one of the other two stop criteria ends the run.
NO_LIMIT = 10**9
#: Share of the longest response over which the overlong penalty falls, as in DAPO's paper (4,096 of 20,480).
OVERLONG_SHARE = 5
#: Options of `add_arm_args` that are settings of `adaptive_rollout`.
FORK_OPTIONS = (
    "branching", "num_initial_rollouts", "random_fork_probability", "entropy_baseline", "budget_allocation",
)  # fmt: skip
#: Settings of a configuration that `rllib-arpo entropy` has under the same names.
ENTROPY_SETTINGS = (
    "dtype", "temperature", "max_context_tokens", "max_response_tokens", "max_turn_tokens", "max_tool_calls",
    "entropy_estimator", "entropy_normalization", "branch_width", "branch_base_probability", "branch_entropy_weight",
    "branch_threshold",
)  # fmt: skip
#: The engine's part of each GPU that Ray gives to its env runner; the rest is for activations.
ENGINE_MEMORY = 0.9
#: The common settings of the authors' recipes: keywords of `adaptive_rollout` and of `training`.
AUTHORS_ROLLOUT: Mapping[str, Any] = {
    "num_rollouts": 16,
    "num_initial_rollouts": 8,
    "branching": "probability",
    "branch_base_probability": 0.5,
    "branch_entropy_weight": 0.2,
    "branch_width": 1,
    "entropy_window": 20,
    "entropy_normalization": "sum_log_vocab",
    "temperature": 1.0,
}
AUTHORS_TRAINING: Mapping[str, Any] = {
    "lr": 1e-6,
    "questions_per_batch": 128,
    "questions_per_minibatch": 16,
    "loss_aggregation": "token_mean",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "dual_clip": 3.0,
    "kl_coeff": 0.0,
    "adam_betas": (0.9, 0.999),
    "weight_decay": 0.01,
}


def gpu_recipe_parser(num_learners: int, num_env_runners: int) -> argparse.ArgumentParser:
    """RLlib's common command line with the arguments of a recipe on parquet data.

    Args:
        num_learners, num_env_runners: defaults; each learner and each env runner gets one GPU.
    """
    parser = add_rllib_example_script_args(
        default_reward=STOP_REWARD, default_iters=TWO_EPOCHS, default_timesteps=NO_LIMIT
    )
    # RLlib's runner sets one GPU per learner if it sees a GPU and the number is not given.
    parser.set_defaults(
        algo="ARPO", num_learners=num_learners, num_gpus_per_learner=1.0, num_env_runners=num_env_runners
    )
    # Paths are made absolute, since Tune runs a trial in a directory of its own.
    parser.add_argument(
        "--model", type=_model_path, required=True, help="folder of the cold-started model (rllib-arpo cold-start)"
    )
    parser.add_argument(
        "--data",
        type=os.path.abspath,
        required=True,
        help="questions: a .parquet file like the authors' train_10k.parquet",
    )
    parser.add_argument("--index", type=os.path.abspath, help="what `search` searches: a folder of rllib-arpo index")
    parser.add_argument("--search-backend", default="local", help="or the web: searxng, brave, serper or tavily")
    parser.add_argument("--search-url", help="server of the web back-end, where it has no public one (searxng)")
    parser.add_argument(
        "--cache",
        type=os.path.abspath,
        help="known searches: a .json file {query: result}, or a .sqlite file that grows",
    )
    parser.add_argument(
        "--eval-data", type=os.path.abspath, help="held-out questions in the same layout, asked every 10 iterations"
    )
    parser.add_argument("--num-gpus-per-env-runner", type=float, default=1.0, help="a fraction shares the GPU")
    return parser


def _model_path(name: str) -> str:
    """A folder's absolute path; other names are ids of the Hugging Face hub."""
    return os.path.abspath(name) if os.path.isdir(name) else name


def add_arm_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the arguments of recipes that are run with several algorithms (RLlib's `--algo`), fork rules and seeds."""
    parser.add_argument("--seed", type=int, default=0, help="of the order of the questions and of the forks")
    parser.add_argument("--num-rollouts", type=int, help="M, trajectories per question; default: the recipe's")
    parser.add_argument("--num-initial-rollouts", type=int, help="N, of algorithms that fork; default: the recipe's")
    parser.add_argument("--attribution", help="'soft' or 'hard' advantages of tokens that trajectories share")
    parser.add_argument("--branching", help="the fork rule, where it is not the algorithm's own")
    parser.add_argument("--random-fork-probability", type=float, help="of --branching random")
    parser.add_argument("--entropy-baseline", help="'initial' or 'running', of fork rules that look at the entropy")
    parser.add_argument("--budget-allocation", help="which nodes come first where the forks are fewer, e.g. 'ranked'")
    parser.add_argument(
        "--questions-per-minibatch",
        type=int,
        help="default: all of a batch in one step, or half of them with an algorithm that needs several steps",
    )
    return parser


def arm_config(
    args: argparse.Namespace,
    *,
    num_rollouts: int,
    num_initial_rollouts: int,
    branch_threshold: float,
    max_response_tokens: int,
    questions_per_batch: int,
) -> ARPOConfig:
    """The configuration of the algorithm and the fork rule that the command line names.

    It fits an algorithm's own settings to the recipe's sizes: an overlong penalty (DAPO) begins a fifth of the longest
    response before its end, and a minibatch is half a batch if an update must have several steps (AEPO).

    Args:
        args: of a parser that `add_arm_args` has seen.
        num_rollouts, num_initial_rollouts: M, and N of algorithms that fork, where the command line does not say.
        branch_threshold: tau, of the rule "threshold".
        max_response_tokens, questions_per_batch: as in `ARPOConfig`.

    Raises:
        ValueError: an option belongs to forks, but the algorithm does not fork.
    """
    import rllib_arpo

    rllib_arpo.register()  # Tune forgets the names at `ray.shutdown()`.
    config: ARPOConfig = get_trainable_cls(args.algo).get_default_config()
    config.adaptive_rollout(num_rollouts=args.num_rollouts or num_rollouts, max_response_tokens=max_response_tokens)
    _set_fork_rule(config, args)
    if config.branching != "never" and args.num_initial_rollouts is None:
        config.adaptive_rollout(num_initial_rollouts=num_initial_rollouts)
    if config.branching == "threshold":
        config.adaptive_rollout(branch_threshold=branch_threshold)
    if config.overlong_buffer_tokens is not None:
        config.training(overlong_buffer_tokens=max_response_tokens // OVERLONG_SHARE)
    usual = questions_per_batch // 2 if config.keep_clipped_gradient else questions_per_batch
    return config.training(
        questions_per_batch=questions_per_batch, questions_per_minibatch=args.questions_per_minibatch or usual
    )


def _set_fork_rule(config: ARPOConfig, args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in FORK_OPTIONS if getattr(args, name) is not None}
    config.adaptive_rollout(**given)
    if args.attribution is not None:
        config.training(attribution=args.attribution)
        given["attribution"] = args.attribution
    unread = [name for name in given if name != "branching"]
    if config.branching == "never" and unread:
        option = unread[0].replace("_", "-")
        raise ValueError(f"--{option} {given[unread[0]]}: --algo {args.algo} with branching='never' forks nothing.")


def draw_entropy(config: ARPOConfig, task: str, folder: str, num_questions: int = 32) -> None:
    """Draws where the model is unsure before it is trained (`rllib-arpo entropy`); the figure goes into `folder`.

    Args:
        task: the first `num_questions` of its held-out questions are asked.
    """
    arguments = {
        "model": config.model_name_or_path, "tasks": task, "limit": num_questions, "output": folder,
        "window": config.entropy_window, **{name: getattr(config, name) for name in ENTROPY_SETTINGS},
    }  # fmt: skip
    # None means no limit, the command's default.
    given = {f"--{name.replace('_', '-')}": str(value) for name, value in arguments.items() if value is not None}
    argv = [part for option in given.items() for part in option]
    # In a separate process, which returns the engine's memory when it ends.
    subprocess.run([sys.executable, "-m", "rllib_arpo", "entropy", *argv], check=True)


def authors_config(
    args: argparse.Namespace,
    *,
    max_prompt_tokens: int,
    max_response_tokens: int,
    max_tool_calls: int,
    more_tools: Mapping[str, Mapping[str, Any]] | None = None,
) -> ARPOConfig:
    """The authors' settings for models up to 8B.

    Args:
        args: of a `gpu_recipe_parser`.
        max_prompt_tokens, max_response_tokens, max_tool_calls: per trajectory; they differ between the authors' tasks.
        more_tools: beside `search` and `python`.
    """
    tools = {"search": {"top_k": 10, **_search_options(args)}, "python": {}, **(more_tools or {})}
    config = (
        ARPOConfig()
        .environment(
            "ParquetQuestions-v0", env_config={"path": args.data, "tools": tools, "protocol": "tags_with_thought"}
        )
        .language_model(
            model_name_or_path=args.model,
            max_context_tokens=max_prompt_tokens + max_response_tokens,
            engine_kwargs={"gpu_memory_utilization": ENGINE_MEMORY * min(1.0, args.num_gpus_per_env_runner)},
        )
        .adaptive_rollout(**AUTHORS_ROLLOUT, max_tool_calls=max_tool_calls, max_response_tokens=max_response_tokens)
        .training(**AUTHORS_TRAINING, sharding="fsdp2" if args.num_learners > 1 else "none")
        .env_runners(
            num_env_runners=args.num_env_runners,
            num_gpus_per_env_runner=args.num_gpus_per_env_runner,
            num_envs_per_env_runner=32,
        )
        .learners(num_learners=args.num_learners, num_gpus_per_learner=args.num_gpus_per_learner)
        .debugging(seed=0)
    )
    if args.eval_data:
        config.evaluation(
            evaluation_interval=10,
            evaluation_duration=180,
            evaluation_config={"env_config": {"path": args.eval_data, "split": "test"}},
        )
    return config


def _search_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of the search tool that the command line sets."""
    options = {"backend": args.search_backend, "index": args.index, "base_url": args.search_url, "cache": args.cache}
    return {key: value for key, value in options.items() if value is not None}


def run_recipe(
    config: ARPOConfig, args: argparse.Namespace, experiment_name: str, test_metric: str | None = None
) -> ResultGrid:
    """Runs `config` through RLlib's example runner, logged to MLflow.

    At the end it prints the first and the last evaluation, if the callback `EvaluationTranscripts` kept them.

    Args:
        test_metric: with --as-test and --as-release-test, what has to reach --stop-reward in the last iteration; the
            run goes on to --stop-iters. Default: the mean return while sampling, which also ends the run.
    """
    from rllib_arpo.tracking.mlflow_callback import ARPOMLflowCallback

    criteria: dict[str, Any] = {}
    if test_metric is not None and (args.as_test or args.as_release_test):
        criteria["stop"] = {TRAINING_ITERATION: args.stop_iters}
        criteria["success_metric"] = {test_metric: args.stop_reward}
    results = run_rllib_example_script_experiment(
        config, args, tune_callbacks=[ARPOMLflowCallback(experiment_name=experiment_name)], **criteria
    )
    if EvaluationTranscripts in force_list(config.callbacks_class) and not args.no_tune:
        print_before_and_after(results)
    return results
