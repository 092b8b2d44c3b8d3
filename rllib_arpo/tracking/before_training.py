"""Evaluates a model before its training, which shows what training has added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback

if TYPE_CHECKING:
    from rllib_arpo.arpo import ARPO


class EvaluateBeforeTraining(RLlibCallback):
    """Evaluates once before the first update. The record keeps this evaluation like the later ones.

    A run that goes on from a checkpoint does not repeat it. RLlib restores an algorithm only after its
    initialization, so this waits for the first iteration.
    """

    def on_algorithm_init(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        algorithm.evaluates_first = True
