"""Collects all options by their method of `ARPOConfig`."""

from rllib_arpo.options.adaptive_rollout import ADAPTIVE_ROLLOUT
from rllib_arpo.options.language_model import LANGUAGE_MODEL
from rllib_arpo.options.option import Method
from rllib_arpo.options.reporting import REPORTING
from rllib_arpo.options.training import TRAINING

METHODS = {
    "language_model": Method("Sets the policy and the engine that samples it.", LANGUAGE_MODEL),
    "adaptive_rollout": Method(
        "Sets how a question's tree of trajectories is sampled (paper, section 3.1).", ADAPTIVE_ROLLOUT
    ),
    "training": Method(
        'Sets the update (docs/design.md, from "Group advantage" on); RLlib\'s own keywords work as well.',
        TRAINING,
        of_rllib=True,
    ),
    "reporting": Method("Sets how a run is watched; RLlib's own keywords work as well.", REPORTING, of_rllib=True),
}

#: Every option by its name.
OPTIONS = {name: option for method in METHODS.values() for name, option in method.options.items()}
