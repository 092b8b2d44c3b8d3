"""What the tuned examples share: how they run, the command line for GPUs, and the settings of ARPO's authors.

The settings are those of the scripts in github.com/RUC-NLPIR/ARPO. What differs: the entropy is exact and is taken
after the tool's response (theirs is a sum over the ten likeliest tokens before it), and a tool counts for the reward
only if it ran.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment
from ray.rllib.utils import force_list

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.logging.transcripts import EvaluationTranscripts, print_before_and_after

if TYPE_CHECKING:
    from ray.tune import ResultGrid

#: Two epochs of the authors' 10,000 questions at 128 questions an iteration.
TWO_EPOCHS = 156
STOP_REWARD = 0.6
#: Turns that are sampled; the other two stop criteria are meant to end the run.
NO_LIMIT = 10**9
#: The engine's part of the GPU memory that Ray gives to its env runner; the rest is for activations.
ENGINE_MEMORY = 0.9


def gpu_recipe_parser(num_learners: int, num_env_runners: int) -> argparse.ArgumentParser:
    """RLlib's common command line with the arguments of a recipe on parquet data.

    Args:
        num_learners, num_env_runners: defaults; each learner and each env runner gets one GPU.
    """
    parser = add_rllib_example_script_args(
        default_reward=STOP_REWARD, default_iters=TWO_EPOCHS, default_timesteps=NO_LIMIT
    )
    # RLlib's runner sets one GPU per learner where it sees one, unless the number is given.
    parser.set_defaults(
        algo="ARPO", num_learners=num_learners, num_gpus_per_learner=1.0, num_env_runners=num_env_runners
    )
    parser.add_argument("--model", required=True, help="folder of the cold-started model (rllib_arpo.cold_start)")
    parser.add_argument("--data", required=True, help="questions: a .parquet file like the authors' train_10k.parquet")
    parser.add_argument("--index", help="what `search` searches: a folder of rllib_arpo.envs.retrieval.build_index")
    parser.add_argument("--search-backend", default="local", help="or the web: searxng, brave, serper or tavily")
    parser.add_argument("--search-url", help="server of the web back-end, where it has no public one (searxng)")
    parser.add_argument("--cache", help="known searches: a .json file {query: result}, or a .sqlite file that grows")
    parser.add_argument("--eval-data", help="held-out questions in the same layout, asked every 10 iterations")
    parser.add_argument("--num-gpus-per-env-runner", type=float, default=1.0, help="a fraction shares the GPU")
    return parser


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
    tools = {"search": _search_options(args), "python": {}, **(more_tools or {})}
    config = (
        ARPOConfig()
        .environment(
            "ParquetQuestions-v0", env_config={"path": args.data, "tools": tools, "protocol": "tags_with_thought"}
        )
        .language_model(
            model_name_or_path=args.model,
            max_context_tokens=max_prompt_tokens + max_response_tokens,
            engine_kwargs={"gpu_memory_utilization": ENGINE_MEMORY * args.num_gpus_per_env_runner},
        )
        .adaptive_rollout(
            num_rollouts=16,
            num_initial_rollouts=8,
            branching="probability",
            branch_base_probability=0.5,
            branch_entropy_weight=0.2,
            branch_width=1,
            max_tool_calls=max_tool_calls,
            max_response_tokens=max_response_tokens,
            temperature=1.0,
        )
        .training(
            lr=1e-6,
            questions_per_batch=128,
            questions_per_minibatch=16,
            loss_aggregation="token_mean",
            clip_low=0.2,
            clip_high=0.2,
            kl_coeff=0.0,
            sharding="fsdp2" if args.num_learners > 1 else "none",
        )
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
    """Options of the search tool that the command line sets."""
    options = {"backend": args.search_backend, "index": args.index, "base_url": args.search_url, "cache": args.cache}
    return {key: value for key, value in options.items() if value is not None}


def run_recipe(config: ARPOConfig, args: argparse.Namespace, experiment_name: str) -> ResultGrid:
    """Runs `config` through RLlib's example runner, logged to MLflow.

    At the end it prints the first and the last evaluation, if the callback `EvaluationTranscripts` kept them.
    """
    from rllib_arpo.logging.mlflow_callback import ARPOMLflowCallback

    results = run_rllib_example_script_experiment(
        config, args, tune_callbacks=[ARPOMLflowCallback(experiment_name=experiment_name)]
    )
    if EvaluationTranscripts in force_list(config.callbacks_class) and not args.no_tune:
        print_before_and_after(results)
    return results
