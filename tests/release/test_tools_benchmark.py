"""The benchmarks of the tools, on tiny samples and a made-up cache."""

import json

import pytest

from release.benchmarks import tools


@pytest.mark.slow
def test_a_tiny_run_measures_every_tool(tmp_path, monkeypatch):
    pages = {f"who made lamp {i}": f"Page 1: The lamp number {i} stood in the hall for {i} years." for i in range(30)}
    monkeypatch.setattr(tools, "SEARCH_CACHE", tmp_path / "cache.json")
    tools.SEARCH_CACHE.write_text(json.dumps(pages))
    file = tmp_path / "tools.json"
    assert tools.main(["--json", str(file), "--tiny"]) == 0
    written = json.loads(file.read_text())
    assert all(written[key] > 0 for benchmark in tools.BENCHMARKS for key in benchmark.targets)
    assert written["python_warm_p50_ms_detail"]["calls_64"] == 6
    assert written["search_p50_ms_detail"]["passages"] == 9000
