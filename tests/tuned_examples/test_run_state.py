"""Copies of the files from which Tune resumes, and what comes in the place of damaged ones."""

from __future__ import annotations

import json
import pickle

import pytest

from rllib_arpo.recipes.run_state import KeepState, mend_state

STATE = json.dumps({"trial_data": [1, 2]}).encode()
PICKLE = pickle.dumps({"finished": True})
OF_FIRST = {
    "tuner.pkl": PICKLE,
    "experiment_state-1.json": STATE,
    "basic-variant-state-1.json": PICKLE,
    "callback-states-1.pkl": PICKLE,
}
RESULTS = b'{"row": 1}\n{"row": 2}\n{"row": 3}\n'
OF_SECOND = {name.replace("-1", "-2"): content for name, content in OF_FIRST.items()}


def write(run, files) -> None:
    for name, content in files.items():
        (run / name).write_bytes(content)


def state_of(run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", OF_SECOND)
def test_a_part_of_a_file_gives_way_to_its_copy(tmp_path, name):
    write(tmp_path, OF_FIRST | OF_SECOND)
    keeper = KeepState()
    keeper.keep(tmp_path)
    for size in range(len(OF_SECOND[name])):
        write(tmp_path, {name: OF_SECOND[name][:size]})
        keeper.keep(tmp_path)
        mend_state(tmp_path)
        assert state_of(tmp_path) == OF_FIRST | OF_SECOND


def test_the_copy_is_of_the_last_whole_file(tmp_path):
    write(tmp_path, OF_FIRST)
    keeper = KeepState()
    keeper.keep(tmp_path)
    newer = json.dumps({"trial_data": [3]}).encode()
    write(tmp_path, {"experiment_state-1.json": newer})
    keeper.keep(tmp_path)
    write(tmp_path, {"experiment_state-1.json": newer[:5]})
    keeper.keep(tmp_path)
    mend_state(tmp_path)
    assert state_of(tmp_path) == OF_FIRST | {"experiment_state-1.json": newer}


def test_without_a_copy_the_session_before_counts(tmp_path):
    write(tmp_path, OF_FIRST | {"basic-variant-state-2.json": PICKLE[:5]})
    mend_state(tmp_path)
    assert state_of(tmp_path) == OF_FIRST


def test_a_run_whose_first_record_is_damaged_is_refused(tmp_path):
    write(tmp_path, OF_FIRST | {"experiment_state-1.json": b"{"})
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"experiment_state-1\.json: a kill has left a part of this file; begin a new"
        ):
            mend_state(tmp_path)


def test_a_run_that_was_killed_before_tune_wrote_anything_is_left_as_it_is(tmp_path):
    write(tmp_path, {"tuner.pkl": PICKLE})
    mend_state(tmp_path)
    assert state_of(tmp_path) == {"tuner.pkl": PICKLE}


@pytest.mark.parametrize("size", range(len(RESULTS)))
def test_no_whole_row_of_the_results_is_lost(tmp_path, size):
    trial = tmp_path / "trial"
    trial.mkdir()
    keeper = KeepState()
    write(trial, {"result.json": RESULTS[:11]})
    keeper.keep(tmp_path)
    write(trial, {"result.json": RESULTS[:size]})
    keeper.keep(tmp_path)
    mend_state(tmp_path)
    rows = (trial / "result.json").read_bytes()
    assert rows == max(RESULTS[:11], RESULTS[: RESULTS.rfind(b"\n", 0, size) + 1], key=len)
