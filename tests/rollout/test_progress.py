import sys
from contextlib import contextmanager

import pytest

from rllib_arpo.rollout.progress import RolloutProgress, progress_mode


@pytest.fixture
def clock():
    """Shows `clock.now`."""

    def clock():
        return clock.now

    clock.now = 100.0
    return clock


@contextmanager
def running(num_questions, *args, **kwargs):
    progress = RolloutProgress(*args, **kwargs)
    progress.begin(num_questions)
    yield progress
    progress.end()


def test_lines_come_every_15_seconds(capsys, clock):
    with running(8, "rollout 1", "lines", clock=clock) as progress:
        for _ in range(40):
            clock.now += 1
            progress.update(tokens=100, forks=1)
        progress.update(questions=8)
    assert capsys.readouterr().out == (
        "rollout 1: 0/8 questions, 100 tok/s, 15 forks, 0 tools in flight\n"
        "rollout 1: 0/8 questions, 100 tok/s, 30 forks, 0 tools in flight\n"
    )


def test_nothing_is_shown_if_it_is_off(capfd, clock):
    with running(8, "rollout", "off", clock=clock) as progress:
        clock.now += 100
        progress.update(questions=8, tokens=3, forks=2)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch):
    assert progress_mode() == "lines"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert progress_mode() == "bar"


def test_the_bar_needs_no_running_ray(capsys, clock):
    with running(8, "rollout", "bar", clock=clock) as progress:
        clock.now += 2
        progress.update(questions=3, tokens=400, forks=5, tools=3)
        shown = capsys.readouterr().err
    assert "rollout (200 tok/s, 5 forks, 3 tools in flight):  38%" in shown
    assert "3.00/8.00" in shown


def test_questions_that_join_a_running_rollout_add_to_its_total(capsys, clock):
    with running(2, "rollout", "lines", clock=clock) as progress:
        progress.begin(3, "evaluation")
        clock.now += 20
        progress.update(questions=1, tokens=40)
        progress.end()
        progress.update(tokens=1)
        progress.begin(4, "evaluation")
        clock.now += 20
        progress.update(tokens=20)
    assert capsys.readouterr().out == (
        "rollout: 1/5 questions, 2 tok/s, 0 forks, 0 tools in flight\n"
        "evaluation: 0/4 questions, 1 tok/s, 0 forks, 0 tools in flight\n"
    )
