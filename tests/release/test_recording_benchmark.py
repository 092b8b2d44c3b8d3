"""The benchmark of the record and its traces."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from release.benchmarks.common.bench import Bench
from release.benchmarks.rollout import recording


def test_record_and_traces_are_measured_in_turn_with_rollouts_without_them(tmp_path):
    results = recording.recording(Bench(tmp_path, "tiny"))
    for figure in ("record_overhead", "trace_overhead"):
        detail = results[f"{figure}_detail"]
        assert [len(detail[side]) for side in detail["sides"]] == [1, 1]
        # Two questions of two trajectories, with four turns of four tokens.
        assert detail["tokens_per_rollout"] == 64
        assert results[figure] == pytest.approx(0.05 * detail["overhead_of_all"][0], abs=1e-5)
    # A question, two trajectories, eight turns, six tool calls.
    assert results["trace_overhead_detail"]["spans_per_trace"] == 17
    assert results["trace_overhead_detail"]["s_per_trace"] > 0
    (file,) = (tmp_path / "record0" / "trees").iterdir()
    assert pq.read_metadata(file).num_rows == 16
    store = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = store.get_experiment_by_name("benchmark").experiment_id
    # Of the warm-up, of the repeat, and of the measurement alone.
    assert len(store.search_traces(locations=[experiment], include_spans=False)) == 2 * 3
