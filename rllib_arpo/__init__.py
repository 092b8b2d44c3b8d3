"""ARPO (Agentic Reinforced Policy Optimization, arXiv 2507.19849) as an algorithm plugin for Ray RLlib.

Importing this package registers the algorithms ("ARPO", "GRPO", "DAPO", "ReinforcePlusPlus", "AEPO", "TreeGRPO")
and the environments with Ray Tune: `tune.run("ARPO", config=...)` then finds them.
"""

from ray.tune.registry import register_trainable

from rllib_arpo.arpo import ARPO
from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.baselines import (
    AEPO,
    DAPO,
    GRPO,
    AEPOConfig,
    DAPOConfig,
    GRPOConfig,
    ReinforcePlusPlus,
    ReinforcePlusPlusConfig,
    TreeGRPO,
    TreeGRPOConfig,
)
from rllib_arpo.envs.registry import register_envs

__all__ = [
    "AEPO",
    "ARPO",
    "DAPO",
    "GRPO",
    "AEPOConfig",
    "ARPOConfig",
    "DAPOConfig",
    "GRPOConfig",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusConfig",
    "TreeGRPO",
    "TreeGRPOConfig",
    "register",
]


def register() -> None:
    """Registers the algorithms and environments with Ray Tune, as importing the package does.

    Tune keeps the names in the running Ray cluster, so call this after a second `ray.init()` in the same process.
    """
    for algorithm in (ARPO, GRPO, DAPO, ReinforcePlusPlus, AEPO, TreeGRPO):
        register_trainable(algorithm.__name__, algorithm)
    register_envs()


register()
