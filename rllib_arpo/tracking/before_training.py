"""Evaluates a model before its training, which shows what training has added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_arpo.record.recorder import RECORD_FOLDER, trial_folder
from rllib_arpo.record.schema import EVALUATION
from rllib_arpo.tracking.console import evaluation_line

if TYPE_CHECKING:
    from rllib_arpo.arpo import ARPO


class EvaluateBeforeTraining(RLlibCallback):
    """Evaluates once before the first iteration. The record keeps this evaluation like the later ones.

    A run that is resumed in the same folder already has this evaluation, and does not repeat it.
    """

    def on_algorithm_init(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        if not any((trial_folder(algorithm) / RECORD_FOLDER).glob(f"{EVALUATION}-*.parquet")):
            algorithm.messages.add(evaluation_line(algorithm.evaluate()))
