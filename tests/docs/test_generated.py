"""What follows from declarations stands in the files as it should."""

import pytest

from release.generated import GENERATED, REPOSITORY, TABLES, with_tables


@pytest.mark.parametrize("name", GENERATED)
def test_a_file_has_what_follows_from_the_declarations(name):
    """After a change of a declaration: make generated"""
    text = (REPOSITORY / name).read_text()
    assert GENERATED[name](text) == text


def test_a_table_is_written_whatever_stood_there():
    lines = with_tables("before\n\n<!-- table: batch -->\n| old |\n|---|\n\nafter\n").splitlines()
    assert lines == ["before", "", "<!-- table: batch -->", *TABLES["batch"], "", "after"]
