"""The options that all recipes have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from ray.rllib.examples.utils import add_rllib_example_script_args

ALGORITHMS = ("ARPO", "GRPO", "DAPO", "ReinforcePlusPlus", "AEPO", "TreeGRPO")
#: Options of RLlib's examples that would do nothing here: of other algorithms, of several trials, of its older API.
UNUSED = (
    "--env", "--framework", "--num-agents", "--evaluation-duration-unit", "--evaluation-parallel-to-training",
    "--num-samples", "--max-concurrent-trials", "--tune-max-report-freq", "--wandb-key", "--wandb-project",
    "--wandb-run-name", "--stop-timesteps", "--num-aggregator-actors-per-learner", "--num-gpus", "--old-api-stack",
    "--enable-new-api-stack", "--local-mode",
)  # fmt: skip


def recipe_parser(stop_reward: float, stop_iters: int, **defaults: Any) -> argparse.ArgumentParser:
    """RLlib's options of its examples, less those that would do nothing here, and those of a run that can be resumed.

    Args:
        stop_reward, stop_iters: defaults.
        defaults: further defaults, of RLlib's options; without one, the recipe's configuration says what holds.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve")
    add_rllib_example_script_args(parser, default_reward=stop_reward, default_iters=stop_iters)
    for option in UNUSED:
        parser.add_argument(option, action=Refused, nargs="*", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--algo", choices=ALGORITHMS, default=ALGORITHMS[0], help="those after the first: baselines")
    parser.add_argument(
        "--output", type=os.path.abspath, help="folder of the run; default: a new one in ~/ray_results, by algorithm"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --output, at its newest whole checkpoint"
    )
    parser.add_argument(
        "--max-failures", type=int, default=0, help="how often a run that fails goes on at its last checkpoint"
    )
    for option in ("--evaluation-interval", "--evaluation-duration", "--evaluation-num-env-runners"):
        parser.add_argument(option, type=int, help="default: the recipe's")
    parser.add_argument("--verbose", type=int, default=0, help="Tune's own tables: 1 or 2")
    parser.set_defaults(**defaults)
    return parser


class Refused(argparse.Action):
    """Ends the program for an option that would do nothing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"argument {option_string}: does nothing here")
