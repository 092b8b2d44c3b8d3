"""The benchmarks of the tools, on tiny samples of the real data."""

import json

import pytest

from release.benchmarks import tools


@pytest.mark.slow
@pytest.mark.skipif(not tools.SEARCH_CACHE.is_file(), reason="The real data is not here.")
def test_a_tiny_run_measures_every_tool(tmp_path):
    file = tmp_path / "tools.json"
    assert tools.main(["--json", str(file), "--tiny"]) == 0
    written = json.loads(file.read_text())
    assert all(written[key] > 0 for benchmark in tools.BENCHMARKS for key in benchmark.targets)
    assert written["python_warm_p50_ms_detail"]["calls_64"] == 6
    assert written["search_p50_ms_detail"]["passages"] == 9000
