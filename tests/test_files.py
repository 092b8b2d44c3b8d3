"""A file is replaced in one step, or stays."""

import pytest

from rllib_arpo.files import replace_file


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    (tmp_path / "file.partial").write_text("of a killed process")
    with replace_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_file_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match="disk"), replace_file(path) as partial:
        partial.write_text("new")
        raise OSError("the disk is full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
