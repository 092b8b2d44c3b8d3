"""The soak on a few iterations."""

import json

import pytest

from release.benchmarks import soak


@pytest.mark.slow
def test_a_tiny_soak_measures_every_process(tmp_path):
    file = tmp_path / "soak.json"
    assert soak.main(["--json", str(file), "--tiny"]) == 0
    written = json.loads(file.read_text())
    assert all(isinstance(written[key], float) for key in soak.TARGETS)
    detail = written["env_runner_last_kib_detail"]
    assert (detail["iterations"], len(detail["held_mib"])) == ([12, 18], 7)
    assert min(detail["held_mib"]) > 100
