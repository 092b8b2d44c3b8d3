"""What follows from declarations stands in the files as it should."""

import pytest

from release.generated import GENERATED, LISTS, REPOSITORY, with_lists


@pytest.mark.parametrize("name", GENERATED)
def test_a_file_has_what_follows_from_the_declarations(name):
    """After a change of a declaration: make generated"""
    text = (REPOSITORY / name).read_text()
    assert GENERATED[name](text) == text


def test_a_list_is_written_whatever_stood_there():
    lines = with_lists("before\n\n<!-- list: batch -->\n- old\n- older\n\nafter\n").splitlines()
    assert lines == ["before", "", "<!-- list: batch -->", *LISTS["batch"], "", "after"]
