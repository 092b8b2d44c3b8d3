"""The terminal of a run has the package's lines; everything is in the log."""

import errno
import logging
import os
import subprocess
import sys

import pytest

from rllib_arpo.terminal import RunTerminal, open_terminal, say, say_once


def make_noise() -> None:
    """Of native code, of a child, of Python."""
    os.write(2, b"native\n")
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    print("print", flush=True)


def test_only_our_lines_reach_the_terminal_and_all_are_in_the_log(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(1, "w", closefd=False))  # As outside of pytest.
    with RunTerminal(tmp_path / "logs" / "run.log"):
        say("one")
        make_noise()
        say("two\nthree")
    print("after", flush=True)
    assert capfd.readouterr() == ("one\ntwo\nthree\nafter\n", "")
    assert (tmp_path / "logs" / "run.log").read_text() == "one\nnative\nchild\nprint\ntwo\nthree\n"


def test_a_warning_of_the_package_is_shown_once(tmp_path, capfd):
    logger = logging.getLogger("rllib_arpo.tracking")
    handlers = list(logger.parent.handlers)
    with RunTerminal(tmp_path / "run.log"):
        for name in ("a", "a", "b"):
            logger.warning("no %s", name)
        logging.getLogger("elsewhere").warning("noise")
        say_once(f"WARNING {logger.parent.name}: no b")
    warnings = [f"WARNING rllib_arpo: no {name}" for name in "aabb"]
    assert capfd.readouterr().out.splitlines() == warnings[1:3]
    assert (tmp_path / "run.log").read_text().splitlines() == warnings
    assert logger.parent.handlers == handlers


def test_an_error_names_the_log(tmp_path, capfd):
    with pytest.raises(ValueError) as raised, RunTerminal(tmp_path / "run.log"):
        raise ValueError("wrong")
    assert str(raised.value) == "wrong"
    assert raised.value.__notes__ == [f"The log of the run is {tmp_path / 'run.log'}."]
    assert open_terminal() is None


def test_without_a_terminal_of_a_run_lines_are_printed(capfd):
    say("one")
    assert capfd.readouterr() == ("one\n", "")


def test_a_terminal_that_has_gone_ends_no_run(tmp_path):
    reader, writer = os.pipe()
    kept = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    try:
        with RunTerminal(tmp_path / "run.log"):
            os.close(reader)
            say("one")
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert (tmp_path / "run.log").read_text() == "one\n"


def test_control_characters_reach_neither_a_terminal_nor_the_log(tmp_path, capfd, monkeypatch):
    # Half a character in pytest's own log would end pytest-xdist.
    monkeypatch.setattr(logging.getLogger("rllib_arpo"), "propagate", False)
    hostile = "a\x1b[2J\x9b31m\r\x07\u202e\u200eb\ud83d\n\tü😀"
    safe = "a\\x1b[2J\\x9b31m\\r\\x07\\u202e\\u200eb\\ud83d\n\tü😀\n"
    say(hostile)
    say_once(hostile)
    with RunTerminal(tmp_path / "run.log"):
        say(hostile)
        logging.getLogger("rllib_arpo").warning(hostile)
        logging.getLogger("rllib_arpo").warning(hostile)
    warning = f"WARNING rllib_arpo: {safe}"
    assert capfd.readouterr().out == 3 * safe + warning
    assert (tmp_path / "run.log").read_text() == safe + 2 * warning


def test_a_full_disk_of_the_log_takes_no_line_from_the_terminal(tmp_path, capfd, monkeypatch):
    with RunTerminal(tmp_path / "run.log"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", raises_enospc)
            say("one")
        say("two")
    assert capfd.readouterr().out == "one\ntwo\n"


def raises_enospc(*_arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_line_after_the_end_is_nobodys_error(tmp_path, capfd):
    with RunTerminal(tmp_path / "run.log") as terminal:
        pass
    terminal.say("late")
    terminal.warn("late")
    assert capfd.readouterr() == ("late\nlate\n", "")
