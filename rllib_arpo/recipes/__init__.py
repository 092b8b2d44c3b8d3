"""What recipes share.

`contract` says what a recipe is, `command_line` has its options, `run` (with `checkpoints` and `gpus`) runs it, and
`run_screen` is what a person sees.
"""

from rllib_arpo.recipes.command_line import add_arm_args, arm_config, recipe_parser
from rllib_arpo.recipes.run import run_recipe
from rllib_arpo.recipes.run_screen import run_terminal

__all__ = [
    "add_arm_args",
    "arm_config",
    "recipe_parser",
    "run_recipe",
    "run_terminal",
]
