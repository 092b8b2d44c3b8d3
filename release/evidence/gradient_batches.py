"""Batches of one arm at fixed weights: their gradients' sum, and a row of figures for each.

What there is of an arm is one file, which is written anew after every batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from release.evidence.gradient_estimates import CountSketch
from release.evidence.study_run import find, make_algorithm
from rllib_arpo.files import replace_file

SKETCH_SIZE = 1024
#: Batches that are not counted: running baselines have no history before them.
WARM_UP = 1


class GradientCatcher:
    """Runs on a learner: from then on it keeps the gradients of its optimizer steps, and takes none of them."""

    def __init__(self) -> None:
        self._caught: list[np.ndarray] = []

    def __call__(self, learner: Any, **_kwargs: Any) -> None:
        learner.postprocess_gradients = self._keep
        learner.apply_gradients = lambda _gradients: None

    def _keep(self, gradients: dict[Any, Any]) -> dict[Any, Any]:
        parts = [gradient.detach().cpu().double().flatten().numpy() for gradient in gradients.values()]
        self._caught.append(np.concatenate(parts))
        return gradients

    def take(self) -> np.ndarray:
        """[d], the mean over the optimizer steps since the last call.

        Raises:
            ValueError: there was none.
        """
        if not self._caught:
            raise ValueError("The update had no optimizer step, since no trajectory counted.")
        mean = np.mean(self._caught, axis=0)
        self._caught.clear()
        return mean


@dataclass(slots=True)
class State:
    """What an arm has so far.

    Attributes:
        rows: one a batch.
        total: [d], the sum of the gradients; None before the first.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    total: np.ndarray | None = None

    @classmethod
    def read(cls, path: Path) -> State:
        if not path.is_file():
            return cls(path)
        with np.load(path) as file:
            return cls(path, json.loads(str(file["rows"])), file["total"])

    def add(self, row: Mapping[str, Any], gradient: np.ndarray) -> None:
        """The row and the sum are on the disk together when this returns."""
        self.total = gradient.copy() if self.total is None else self.total + gradient
        own = {"batch": len(self.rows), "squared_norm_of_sum": float(self.total @ self.total)}
        self.rows.append({**row, **own})
        with replace_file(self.path) as scratch, scratch.open("wb") as file:
            np.savez(file, rows=json.dumps(self.rows), total=self.total)

    @property
    def mean(self) -> np.ndarray:
        """[d], the mean gradient."""
        assert self.total is not None
        return self.total / len(self.rows)


def sample_batches(
    state: State,
    recipe: str,
    arguments: Sequence[str],
    own: Mapping[str, Any],
    num_batches: int,
    reference: np.ndarray | None,
) -> None:
    """Adds batches to a state until it has `num_batches`.

    Args:
        own: columns that all rows have.
        reference: [d], the reference's mean gradient.
    """
    algorithm = make_algorithm(recipe, arguments)
    # Batch n has the questions of iteration n + WARM_UP, also when the others were sampled before.
    algorithm._drop_questions(len(state.rows) * algorithm.config.questions_per_batch)
    catcher = GradientCatcher()
    algorithm.learner_group.foreach_learner(catcher)
    for _ in range(WARM_UP):
        algorithm.train()
        catcher.take()
    while len(state.rows) < num_batches:
        result = algorithm.train()
        gradient = catcher.take()
        sketch = CountSketch.make(len(gradient), SKETCH_SIZE)(gradient)
        row = {
            **own,
            **batch_figures(result),
            "squared_norm": float(gradient @ gradient),
            "reference_dot": None if reference is None else float(gradient @ reference),
            "sketch": sketch.tolist(),
        }
        state.add(row, gradient)
        print(f"{own['arm']}: batch {len(state.rows)} of {num_batches}", flush=True)
    algorithm.stop()


def batch_figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a batch cost, and its forks."""
    rollout, learner = result["env_runners"], result["learners"]["default_policy"]
    return {
        "tool_calls": int(rollout["tool_calls_executed"]),
        "generated_tokens": int(rollout["generated_tokens"]),
        "computed_tokens": int(learner["tokens_computed"]),
        "fork_rate": find(rollout, ("fork_rate",)),
        "forks_per_question": find(rollout, ("forks_per_question",)),
    }
