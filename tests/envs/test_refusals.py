"""The sentences of `refusals.txt` are those of today."""

import os

from tests.envs import refusals


def test_what_is_refused_has_the_sentence_of_the_file(tmp_path, monkeypatch):
    for variable in ("BRAVE_API_KEY", "SERPER_API_KEY", "TAVILY_API_KEY", "NO_SUCH_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    refusals.prepare()
    accepted = refusals.SENTENCES.read_text(encoding="utf-8")
    anew = refusals.anew(accepted)
    if "ACCEPT" in os.environ:
        refusals.SENTENCES.write_text(anew, encoding="utf-8")
    else:
        assert anew.splitlines() == accepted.splitlines()
