"""Refuses callback classes with methods that ARPO never calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils import force_list

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: Callbacks that ARPO never makes, since it builds an episode when its question has ended.
NEVER_CALLED = ("on_episode_created", "on_episode_start", "on_episode_step")


def check_callbacks(config: ARPOConfig) -> None:
    """Refuses classes that rely on callbacks which ARPO does not make.

    Raises:
        ValueError: one sentence that names class and method.
    """
    for callbacks in force_list(config.callbacks_class):
        for name in NEVER_CALLED:
            if getattr(callbacks, name, None) is not getattr(RLlibCallback, name):
                raise ValueError(
                    f"callbacks_class: {callbacks.__name__}.{name} is never called, since an episode is made when its "
                    "question has ended; use on_episode_end."
                )
