"""The common parts of the tuned examples.

`command_line` has their options, `arms` the algorithm and the fork rule that a command line names, `authors` the
settings of ARPO's authors, `run` the runner (`checkpoints`, `gpus`), and `run_screen` what a person sees.
"""

from rllib_arpo.recipes.arms import add_arm_args, arm_config
from rllib_arpo.recipes.authors import authors_config
from rllib_arpo.recipes.command_line import add_deep_search_args, gpu_recipe_parser, recipe_parser
from rllib_arpo.recipes.entropy_figure import draw_entropy
from rllib_arpo.recipes.run import EVALUATION_ACCURACY, run_recipe
from rllib_arpo.recipes.run_screen import run_terminal

__all__ = [
    "EVALUATION_ACCURACY",
    "add_arm_args",
    "add_deep_search_args",
    "arm_config",
    "authors_config",
    "draw_entropy",
    "gpu_recipe_parser",
    "recipe_parser",
    "run_recipe",
    "run_terminal",
]
