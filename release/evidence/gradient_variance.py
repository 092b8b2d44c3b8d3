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
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from release.evidence.gradient_batches import State, sample_batches
from release.evidence.gradient_estimates import Interval, Sample, estimates, interval
from release.evidence.study_file import Arm, Study, read_study, study_of
from release.evidence.study_rows import fork_rate
from release.evidence.study_run import provenance
from rllib_arpo.files import replace_file

REFERENCE, REFERENCE_FACTOR = "reference", 4
#: The questions of the reference come in an order of their own.
REFERENCE_SEED = 1_000_000


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
        reference = None if arm.name == REFERENCE else self.state(REFERENCE).mean
        seed = self.seed + (REFERENCE_SEED if reference is None else 0)
        own |= {"seed": seed, "wanted_fork_rate": rate}
        sample_batches(state, self.study.recipe, [*arguments, "--seed", str(seed)], own, num_batches, reference)


def write_rows(states: Sequence[State], path: Path) -> None:
    """All rows of all arms as one .parquet file."""
    table = pa.Table.from_pylist([row for state in states for row in state.rows])
    place = table.schema.get_field_index("sketch")
    sketches = table.column("sketch").cast(pa.list_(pa.float32()))
    with replace_file(path) as scratch:
        pq.write_table(table.set_column(place, "sketch", sketches), scratch)


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
    found = {arm: estimates(sample) for arm, sample in samples.items()}
    reference = samples[REFERENCE].signal if REFERENCE in samples else float("nan")
    header = ["arm", "batches", "calls a batch", "children a question", "tr(Cov)", "|mean|^2 / tr(Cov)"]
    header += ["calls for a ratio of 1", f"as a share of those of {baseline}", "cosine to the reference"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for arm in sorted(found, key=lambda name: (name != baseline, name)):
        own, base = found[arm], found.get(baseline)
        children = np.mean([row["forks_per_question"] for row in rows if row["arm"] == arm])
        cells = [arm, str(len(samples[arm].calls)), f"{own.calls[0]:,.0f}", f"{children:.2f}"]
        cells += [_show(interval(own.variance)), _show(interval(own.signal_to_noise))]
        cells.append(_show(interval(own.calls_to_signal)))
        is_compared = base is not None and arm != baseline and len(own.calls) == len(base.calls)
        with np.errstate(invalid="ignore"):  # Two infinite numbers of calls have no ratio.
            cells.append(_show(interval(own.calls_to_signal / base.calls_to_signal)) if is_compared else "")
        cells.append("" if arm == REFERENCE else _show(interval(own.cosine(reference))))
        lines.append(f"| {' | '.join(cells)} |")
    told = [f"{column}: {', '.join(sorted({row[column] for row in rows}))}" for column in ("commit", "machine")]
    return "\n".join([*lines, "", *told])


def _show(values: Interval) -> str:
    value, low, high = values
    return "" if np.isnan(value) else f"{value:.3g} [{low:.3g}, {high:.3g}]"


def measure_all(measurement: Measurement, arms: Sequence[Arm], num_batches: int, output: Path) -> None:
    """The reference first, then the arms; those that need another's fork rate last."""
    measurement.folder.mkdir(parents=True, exist_ok=True)
    reference = replace(measurement.study.arms[measurement.study.baseline], name=REFERENCE)
    measurement.measure(reference, REFERENCE_FACTOR * num_batches)
    for arm in sorted(arms, key=lambda arm: arm.fork_rate_of is not None):
        measurement.measure(arm, num_batches)
        write_rows([State.read(path) for path in sorted(measurement.folder.glob("*.npz"))], output)


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
