"""The terminal of a run has the package's lines and the live view; everything is in the log."""

from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import sys

import pytest

from rllib_arpo.terminal import RunTerminal, activity, open_terminal, say
from tests.helpers.screens import on_a_terminal, screen_of


def make_noise() -> None:
    """Of native code, of a child, of Python."""
    os.write(2, b"native\n")
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    print("print", flush=True)


def test_only_our_lines_reach_the_terminal_and_all_are_in_the_log(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(1, "w", closefd=False))  # As outside of pytest.
    with RunTerminal(tmp_path / "logs" / "run.log", live=True):
        say("one")
        make_noise()
        with activity("begins", "label", "steps") as tell:
            tell(1, 2)
        say("two\nthree")
    print("after", flush=True)
    assert capfd.readouterr() == ("one\nbegins\ntwo\nthree\nafter\n", "")
    assert (tmp_path / "logs" / "run.log").read_text() == "one\nnative\nchild\nprint\nbegins\ntwo\nthree\n"


def test_a_warning_of_the_package_is_shown_once(tmp_path, capfd):
    logger = logging.getLogger("rllib_arpo.tracking")
    handlers = list(logger.parent.handlers)
    with RunTerminal(tmp_path / "run.log", live=False):
        for name in ("a", "a", "b"):
            logger.warning("no %s", name)
        logging.getLogger("elsewhere").warning("noise")
    warnings = [f"WARNING rllib_arpo: no {name}" for name in "aab"]
    assert capfd.readouterr().out.splitlines() == warnings[1:]
    assert (tmp_path / "run.log").read_text().splitlines() == warnings
    assert logger.parent.handlers == handlers


def test_a_line_after_the_end_is_nobodys_error(tmp_path, capfd):
    with RunTerminal(tmp_path / "run.log", live=False) as terminal:
        pass
    terminal.say("late")
    terminal.warn("late")
    terminal.show("key", "label")
    terminal.hide_all()
    assert capfd.readouterr() == ("late\nlate\n", "")


def test_an_error_names_the_log(tmp_path, capfd):
    with pytest.raises(ValueError) as raised, RunTerminal(tmp_path / "run.log", live=True):
        raise ValueError("wrong")
    assert str(raised.value) == "wrong"
    assert raised.value.__notes__ == [f"The log of the run is {tmp_path / 'run.log'}."]
    assert open_terminal() is None


def test_without_a_terminal_of_a_run_lines_are_printed_and_activities_are_not(capfd):
    say("one")
    with activity("begins", "label") as tell:
        tell(1, 2)
    assert capfd.readouterr() == ("one\n", "")


def test_a_terminal_that_has_gone_ends_no_run(tmp_path):
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    try:
        with RunTerminal(tmp_path / "run.log", live=False):
            os.close(reader)
            say("one")
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert (tmp_path / "run.log").read_text() == "one\n"


def test_a_full_disk_of_the_log_takes_no_line_from_the_terminal(tmp_path, capfd, monkeypatch):
    with RunTerminal(tmp_path / "run.log", live=False):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", raises_enospc)
            say("one")
        say("two")
    assert capfd.readouterr().out == "one\ntwo\n"


def raises_enospc(*_arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_live_view_is_below_the_lines_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with on_a_terminal() as pty, RunTerminal(tmp_path / "run.log", live=True) as terminal:
        terminal.show("a", "rollout 1", 1, 4, "questions")
        terminal.show("b", "rollout 2", 0, 4, "questions")
        say("a line")
        terminal.show("a", "rollout 1", 3, 4, "questions")
        terminal.hide("b")
        terminal.hide_all()
        with activity("begins", "figure"):
            say("another line")
    assert screen_of(pty.text) == ["a line", "begins", "another line", ""]
    pictures = [screen_of(pty.text[: match.start()]) for match in re.finditer("\r", pty.text)]
    shown = [[re.sub(" +[━╸╺]+ +", " | ", line) for line in picture] for picture in pictures]
    assert ["rollout 1 | 1/4 questions 0:00:00", "rollout 2 | 0/4 questions 0:00:00"] in shown
    assert ["a line", "rollout 1 | 3/4 questions 0:00:00", "rollout 2 | 0/4 questions 0:00:00"] in shown
    assert any(picture[:2] == ["a line", "begins"] and picture[-1].startswith("figure | ") for picture in shown)
