"""The learning curves of a study, by hand."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from release.evidence import curves

EVIDENCE = Path(__file__).resolve().parents[2] / "release" / "evidence"


def row(seed: int, iteration: int, calls: int, accuracy: float | None) -> dict:
    return {"arm": "grpo", "seed": seed, "iteration": iteration, "tool_calls": calls, "accuracy": accuracy}


def test_curves_end_where_the_shortest_run_does():
    rows = [row(0, 2, 40, 1.0), row(0, 1, 39, None), row(0, 0, 0, 0.0), row(1, 0, 0, 0.5), row(1, 2, 20, 0.5)]
    at, values = curves.curves(rows, "tool_calls")["grpo"]
    assert at[[0, 50, 100]].tolist() == [0.0, 10.0, 20.0]
    np.testing.assert_allclose(values[:, [0, 50, 100]], [[0.0, 0.25, 0.5], [0.5, 0.5, 0.5]])


def test_the_band_of_two_points():
    """Two seeds that are far apart at the first point and equal at the second."""
    assert curves.band(np.array([[0.0, 0.25], [1.0, 0.25]])) == ([0.0, 0.25], [1.0, 0.25])


def test_the_figure_of_the_rows_that_are_kept(tmp_path):
    rows = pq.read_table(EVIDENCE / "results" / "trails-small.parquet").to_pylist()
    curves.draw(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
