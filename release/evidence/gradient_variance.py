"""Measures how much the gradient of an update varies from batch to batch, arm by arm, at fixed weights.

    python -m release.evidence.gradient_variance --output FILE.parquet --arms grpo threshold random --batches 64
    python -m release.evidence.gradient_variance --table FILE.parquet

Each arm of the study samples batches with its own rollout from the cold-started model; the learner computes the
gradient of the arm's own loss for each of them, and takes no step. Batches of a number have the same questions in all
arms. `reference` are batches of the study's baseline with the questions in another order, four times as many: the
mean gradient that the others' are compared with. The same command goes on where it was stopped: what an arm has so far
lies in FILE.parts/, written anew after every batch.

An update of several minibatches counts with the mean of their gradients. Gradients are those before clipping.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from release.evidence.gradient_estimates import Sample, estimates, interval, sketch
from release.evidence.study_file import Arm, Study, read_study, study_of
from release.evidence.study_rows import fork_rate
from release.evidence.study_run import find, make_algorithm, provenance
from rllib_arpo.files import replace_file

REFERENCE, REFERENCE_FACTOR = "reference", 4
#: The questions of the reference come in an order of their own.
REFERENCE_SEED = 1_000_000
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


@dataclass(frozen=True, slots=True)
class Measurement:
    """Where the states of a measurement lie, and what it is of."""

    study: Study
    folder: Path
    seed: int

    def state(self, name: str) -> State:
        return State.read(self.folder / f"{name}.npz")

    def measure(self, arm: Arm, num_batches: int) -> None:
        """Samples what is missing of an arm.

        Raises:
            ValueError: the arm's state has other settings, or the arm whose fork rate this one has was not measured.
        """
        state = self.state(arm.name)
        rate = None
        if arm.fork_rate_of is not None:
            # More batches of the other arm would change it.
            rate = state.rows[0]["wanted_fork_rate"] if state.rows else fork_rate(self.state(arm.fork_rate_of).rows)
        arguments = self.study.all_arguments(arm, rate)
        own = {"study": self.study.name, "arm": arm.name, **provenance(self.study, arm, arguments)}
        for column in ("arguments", "package_version"):
            if state.rows and state.rows[0][column] != own[column]:
                raise ValueError(
                    f"{state.path}: is of {column}={state.rows[0][column]!r} and not {own[column]!r}; take another "
                    f"--output."
                )
        if len(state.rows) >= num_batches:
            return
        seed, reference = self.seed + REFERENCE_SEED, None
        if arm.name != REFERENCE:
            of_reference = self.state(REFERENCE)
            seed, reference = self.seed, of_reference.total / len(of_reference.rows)
        own |= {"seed": seed, "wanted_fork_rate": rate}
        sample_batches(state, self.study.recipe, [*arguments, "--seed", str(seed)], own, num_batches, reference)


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
        rollout = result["env_runners"]
        row = {
            **own,
            "tool_calls": int(rollout["tool_calls_executed"]),
            "generated_tokens": int(rollout["generated_tokens"]),
            "computed_tokens": int(result["learners"]["default_policy"]["tokens_computed"]),
            "fork_rate": find(rollout, ("fork_rate",)),
            "forks_per_question": find(rollout, ("forks_per_question",)),
            "squared_norm": float(gradient @ gradient),
            "reference_dot": None if reference is None else float(gradient @ reference),
            "sketch": sketch(gradient, SKETCH_SIZE).tolist(),
        }
        state.add(row, gradient)
        print(f"{own['arm']}: batch {len(state.rows)} of {num_batches}", flush=True)
    algorithm.stop()


def measure_all(measurement: Measurement, arms: Sequence[Arm], num_batches: int, output: Path) -> None:
    """The reference first, then the arms; those that need another's fork rate last."""
    measurement.folder.mkdir(parents=True, exist_ok=True)
    reference = replace(measurement.study.arms[measurement.study.baseline], name=REFERENCE)
    measurement.measure(reference, REFERENCE_FACTOR * num_batches)
    for arm in sorted(arms, key=lambda arm: arm.fork_rate_of is not None):
        measurement.measure(arm, num_batches)
        states = [State.read(path) for path in sorted(measurement.folder.glob("*.npz"))]
        rows = pa.Table.from_pylist([row for state in states for row in state.rows])
        sketches = rows.column("sketch").cast(pa.list_(pa.float32()))
        with replace_file(output) as scratch:
            pq.write_table(rows.set_column(rows.schema.get_field_index("sketch"), "sketch", sketches), scratch)


def samples_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Sample]:
    """Arm -> its sample, in the order of the rows; arms with fewer than two batches are left out."""
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["batch"]):
        by_arm.setdefault(row["arm"], []).append(row)
    return {
        arm: Sample(
            calls=np.array([row["tool_calls"] for row in of_arm], dtype=float),
            squared_norms=np.array([row["squared_norm"] for row in of_arm]),
            squared_norm_of_sum=of_arm[-1]["squared_norm_of_sum"],
            sketches=np.array([row["sketch"] for row in of_arm], dtype=float),
            reference_dots=np.array([row["reference_dot"] for row in of_arm], dtype=float),
        )
        for arm, of_arm in by_arm.items()
        if len(of_arm) > 1
    }


def table(rows: Sequence[Mapping[str, Any]], baseline: str) -> str:
    """In Markdown, one line an arm; intervals are 95 % bootstrap intervals over batches.

    Arms differ in the size of their mean gradients, so that their variances alone do not compare; the calls after which
    signal and noise are equal do.
    """
    samples = samples_of(rows)
    reference = samples[REFERENCE].signal if REFERENCE in samples else float("nan")
    found = {arm: estimates(sample, reference) for arm, sample in samples.items()}
    header = ["arm", "batches", "calls a batch", "children a question", "tr(Cov)", "|mean|^2 / tr(Cov)"]
    header += ["calls for a ratio of 1", f"as a share of those of {baseline}", "cosine to the reference"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for arm in sorted(found, key=lambda name: (name != baseline, name)):
        own, base = found[arm], found.get(baseline)
        children = np.mean([row["forks_per_question"] for row in rows if row["arm"] == arm])
        cells = [arm, str(len(samples[arm].calls)), f"{own['calls'][0]:,.0f}", f"{children:.2f}"]
        cells += [_show(own[name]) for name in ("variance", "signal_to_noise", "calls_to_signal")]
        is_compared = base is not None and arm != baseline and len(own["calls"]) == len(base["calls"])
        with np.errstate(invalid="ignore"):  # Two infinite numbers of calls have no ratio.
            cells.append(_show(own["calls_to_signal"] / base["calls_to_signal"]) if is_compared else "")
        cells.append("" if arm == REFERENCE else _show(own["cosine"]))
        lines.append(f"| {' | '.join(cells)} |")
    told = [f"{column}: {', '.join(sorted({row[column] for row in rows}))}" for column in ("commit", "machine")]
    return "\n".join([*lines, "", *told])


def _show(values: np.ndarray) -> str:
    value, low, high = interval(values)
    return "" if np.isnan(value) else f"{value:.3g} [{low:.3g}, {high:.3g}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", type=Path, default=study_of("trails-small"))
    parser.add_argument("--output", type=Path, help="a .parquet file of all rows")
    parser.add_argument("--arms", nargs="+", help="default: all of the study")
    parser.add_argument("--batches", type=int, default=64, help="of each arm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path, help="run nothing: the table of a .parquet file")
    args = parser.parse_args()
    study = read_study(args.study)
    if args.table is None:
        if args.output is None:
            parser.error("--output is needed, or --table.")
        measurement = Measurement(study, args.output.with_suffix(".parts"), args.seed)
        try:
            measure_all(measurement, study.arms_named(args.arms), args.batches, args.output)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(table(pq.read_table(args.table or args.output).to_pylist(), study.baseline))
    return 0


if __name__ == "__main__":
    sys.exit(main())
