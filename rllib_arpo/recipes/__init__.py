"""The common parts of the tuned examples.

`run_screen` has what a person sees. CPU recipes: `arms` (the algorithm and fork rule of the command line) and `run`
(RLlib's example runner). GPU recipes: `command_line`, `authors` (the settings of ARPO's authors) and `gpu_run`
(checkpoints, resuming, the model at the end).
"""

from rllib_arpo.recipes.arms import add_arm_args, arm_config
from rllib_arpo.recipes.authors import authors_config
from rllib_arpo.recipes.command_line import add_deep_search_args, gpu_recipe_parser
from rllib_arpo.recipes.entropy_figure import draw_entropy
from rllib_arpo.recipes.gpu_run import run_gpu_recipe
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
    "run_gpu_recipe",
    "run_recipe",
    "run_terminal",
]
