"""The sentences of `refusals.txt` are those of today."""

import pytest

from tests.envs import refusals

KEYS = ("BRAVE_API_KEY", "SERPER_API_KEY", "TAVILY_API_KEY", "NO_SUCH_KEY")


@pytest.mark.parametrize("section", refusals.SECTIONS)
def test_what_is_refused_has_the_sentence_of_the_file(section, tmp_path, monkeypatch):
    for variable in KEYS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    refusals.prepare()
    accepted = refusals.accepted()[section]
    assert refusals.anew(section, accepted) == accepted
