"""The common parts of the tuned examples.

`command_line` has their options, `arms` the algorithm and the fork rule that a command line names, `run` the runner
(`checkpoints`, `gpus`), and `run_screen` what a person sees.
"""

from rllib_arpo.recipes.arms import add_arm_args, arm_config
from rllib_arpo.recipes.command_line import recipe_parser
from rllib_arpo.recipes.run import EVALUATION_ACCURACY, run_recipe
from rllib_arpo.recipes.run_screen import run_terminal

__all__ = [
    "EVALUATION_ACCURACY",
    "add_arm_args",
    "arm_config",
    "recipe_parser",
    "run_recipe",
    "run_terminal",
]
