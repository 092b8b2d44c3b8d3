"""The record of a run on the disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.record.trees import TREE
from tests.show.conftest import write_record


@pytest.fixture(scope="session")
def record(tmp_path_factory, model_folder) -> Path:
    """The folder of a run with two evaluations and an iteration, of the questions "lamps" and "cups"."""
    folder = tmp_path_factory.mktemp("run")
    write_record(folder, model_folder, [TREE, replace(TREE, question_id="cups")])
    return folder
