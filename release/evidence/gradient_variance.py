"""Measures how much the gradient of an update varies from batch to batch, arm by arm, at fixed weights.

    python -m release.evidence.gradient_variance --output FILE.parquet --arms grpo threshold random --batches 64
    python -m release.evidence.gradient_variance --table FILE.parquet

Each arm of the study samples batches with its own rollout from the cold-started model; the learner computes the
gradient of the arm's own loss for each of them, and takes no step. Batches of a number have the same questions in all
arms. `reference` are batches of the study's baseline with the questions in another order, four times as many: the
other arms are compared with its mean gradient and its calls.

An update of several minibatches counts with the mean of their gradients. Gradients are those before clipping.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from release.evidence.gradient_estimates import Sample, estimates, interval, sketch
from release.evidence.study_file import Arm, Study, read_study, study_of
from release.evidence.study_rows import fork_rate
from release.evidence.study_run import find, make_algorithm, provenance
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import opened_parquet
from rllib_arpo.evaluation.arguments import positive
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


def sample_batches(
    recipe: str, arguments: Sequence[str], num_batches: int, reference: np.ndarray | None, own: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Samples batches and computes their gradients: the rows, one a batch, and the sum of the gradients, [d].

    Args:
        reference: [d], the reference's mean gradient.
        own: columns that all rows have.
    """
    algorithm = make_algorithm(recipe, arguments)
    catcher = GradientCatcher()
    algorithm.learner_group.foreach_learner(catcher)
    for _ in range(WARM_UP):
        algorithm.train()
        catcher.take()
    rows: list[dict[str, Any]] = []
    total = np.zeros(1)
    for batch in range(num_batches):
        result = algorithm.train()
        gradient = catcher.take()
        total = total + gradient
        rollout = result["env_runners"]
        row = {
            **own,
            "batch": batch,
            "tool_calls": int(rollout["tool_calls_executed"]),
            "generated_tokens": int(rollout["generated_tokens"]),
            "computed_tokens": int(result["learners"]["default_policy"]["tokens_computed"]),
            "fork_rate": find(rollout, ("fork_rate",)),
            "forks_per_question": find(rollout, ("forks_per_question",)),
            "squared_norm": float(gradient @ gradient),
            "squared_norm_of_sum": float(total @ total),
            "reference_dot": None if reference is None else float(gradient @ reference),
            "sketch": sketch(gradient, SKETCH_SIZE).tolist(),
        }
        rows.append(row)
        print(f"{own['arm']}: batch {batch + 1} of {num_batches}", flush=True)
    algorithm.stop()
    return rows, total


def measure(study: Study, arms: Sequence[Arm], num_batches: int) -> list[dict[str, Any]]:
    """The rows of the reference, then of the arms; those that need another's fork rate come last.

    Raises:
        ValueError: an arm needs the fork rate of one that is not asked for.
    """
    named = {arm.name for arm in arms}
    for arm in arms:
        if arm.fork_rate_of is not None and arm.fork_rate_of not in named:
            raise ValueError(f"{arm.name}: has the fork rate of {arm.fork_rate_of!r}; name it as well.")
    rows: dict[str, list[dict[str, Any]]] = {}

    def sample(arm: Arm, seed: int, number: int, reference: np.ndarray | None) -> np.ndarray:
        rate = None if arm.fork_rate_of is None else fork_rate(rows[arm.fork_rate_of])
        arguments = study.all_arguments(arm, rate)
        own = {"study": study.name, "arm": arm.name, **provenance(study, arm, arguments), "seed": seed}
        of_arm = sample_batches(study.recipe, [*arguments, "--seed", str(seed)], number, reference, own)
        rows[arm.name], total = of_arm
        return total / number

    baseline = replace(study.arms[study.baseline], name=REFERENCE)
    reference = sample(baseline, REFERENCE_SEED, REFERENCE_FACTOR * num_batches, None)
    for arm in sorted(arms, key=lambda arm: arm.fork_rate_of is not None):
        sample(arm, 0, num_batches, reference)
    return [row for of_arm in rows.values() for row in of_arm]


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    table = pa.Table.from_pylist(list(rows))
    sketches = table.column("sketch").cast(pa.list_(pa.float16()))
    with replace_file(path) as scratch:
        pq.write_table(table.set_column(table.schema.get_field_index("sketch"), "sketch", sketches), scratch)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .parquet file of `measure_all`.

    Raises:
        DataError: the file is not there, not readable, has other rows, or a batch of an arm twice.
    """
    with opened_parquet(path) as file:
        rows: list[dict[str, Any]] = file.read().to_pylist()
    if not rows or not rows[0].keys() >= {"arm", "batch", "squared_norm_of_sum", "sketch"}:
        raise DataError(f"{path}: has no rows of gradients, each of an arm and a batch.")
    if len({(row["arm"], row["batch"]) for row in rows}) < len(rows):
        raise DataError(f"{path}: has a batch of an arm twice.")
    return rows


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
    parser.add_argument("--study", type=Path, help="default: trails_small.yaml")
    parser.add_argument("--output", type=Path, help="a .parquet file of all rows")
    parser.add_argument("--arms", nargs="+", help="default: all of the study")
    parser.add_argument("--batches", type=positive, help="of each arm; default: 64")
    parser.add_argument("--table", type=Path, help="run nothing: the table of a .parquet file")
    args = parser.parse_args()
    if args.table is None and args.output is None:
        parser.error("--output is needed, or --table.")
    for option in ("study", "output", "arms", "batches"):
        if args.table is not None and getattr(args, option) is not None:
            parser.error(f"argument --{option}: does nothing with --table")
    try:
        if args.table is None:
            study = read_study(args.study or study_of("trails-small"))
            write_rows(measure(study, study.arms_to_run(args.arms), args.batches or 64), args.output)
        print(table(read_rows(args.table or args.output), REFERENCE))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
