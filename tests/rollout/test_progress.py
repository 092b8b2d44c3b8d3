import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import ray
from ray.experimental import tqdm_ray

from rllib_arpo.rollout.progress import RolloutProgress, progress_mode
from tests.helpers.clusters import own_ray


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def running(num_questions, *args, **kwargs):
    progress = RolloutProgress(*args, **kwargs)
    progress.begin(num_questions)
    yield progress
    progress.end()


def test_lines_come_every_15_seconds(capsys):
    clock = FakeClock()
    with running(8, "rollout 1", enabled="lines", clock=clock) as progress:
        for _ in range(40):
            clock.now += 1
            progress.update(tokens=100, forks=1)
        progress.update(questions=8)
    assert capsys.readouterr().out == (
        "rollout 1: 0/8 questions, 100 tok/s, 15 forks\nrollout 1: 0/8 questions, 100 tok/s, 30 forks\n"
    )


def test_nothing_is_shown_where_there_is_no_terminal(capfd):
    assert progress_mode() == "off"
    with running(8, "rollout") as progress:
        progress.update(questions=8, tokens=3, forks=2)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_shown_if_not_enabled(capfd, monkeypatch):
    monkeypatch.setenv("RLLIB_ARPO_PROGRESS", "bar")
    with running(8, "rollout", enabled=False) as progress:
        progress.update(questions=8)
    assert capfd.readouterr() == ("", "")


def test_the_mode_is_asked_for_by_argument_then_environment_then_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert progress_mode() == "bar"
    monkeypatch.setenv("RLLIB_ARPO_PROGRESS", "lines")
    assert progress_mode() == "lines"
    assert progress_mode("off") == "off"
    with pytest.raises(ValueError, match=r"progress must be one of \['bar', 'lines', 'off'\], not 'loud'"):
        progress_mode("loud")


def test_the_bar_without_ray_is_tqdm(capsys, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    clock = FakeClock()
    with running(8, "rollout", enabled="bar", clock=clock) as progress:
        clock.now += 2
        progress.update(questions=3, tokens=400, forks=5)
        shown = capsys.readouterr().err
    assert "rollout:  38%" in shown
    assert "3/8" in shown
    assert "200 tok/s, 5 forks" in shown


def test_many_updates_are_few_displays():
    shown = []
    clock = FakeClock()
    with running(8, "rollout", enabled="lines", clock=clock) as progress:
        progress._open.interval_s = 0.5
        progress._open.show = lambda state: shown.append(state.tokens)
        for _ in range(1000):
            clock.now += 0.001953125
            progress.update(tokens=1)
    assert shown == [256, 512, 768]


@pytest.fixture
def progress_ray():
    """Ray that hands to the driver what its workers write: bars travel that way."""
    with own_ray(num_cpus=2):
        yield


def test_the_bar_of_a_remote_env_runner_reaches_the_driver(progress_ray, monkeypatch):
    states = []
    manager = SimpleNamespace(process_state_update=states.append, hide_bars=lambda: None, unhide_bars=lambda: None)
    monkeypatch.setattr(tqdm_ray, "instance", lambda: manager)

    @ray.remote(num_cpus=0)
    def rollout():
        with running(4, "rollout 1", enabled="bar") as progress:
            progress.update(questions=4, tokens=10, forks=2)

    ray.get(rollout.remote())
    deadline = time.monotonic() + 20
    while not (states and states[-1]["closed"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [(state["x"], state["total"], state["closed"]) for state in states] == [
        (0, 4, False),
        (4, 4, False),
        (4, 4, True),
    ]
    assert states[0]["desc"] == "rollout 1"
    assert states[-1]["desc"].startswith("rollout 1 (")
    assert states[-1]["desc"].endswith(" tok/s, 2 forks)")


def test_questions_that_join_a_running_rollout_add_to_its_total(capsys):
    clock = FakeClock()
    with running(2, "rollout", enabled="lines", clock=clock) as progress:
        progress.begin(3)
        clock.now += 20
        progress.update(questions=1, tokens=40)
        progress.end()
        progress.update(tokens=1)
    assert capsys.readouterr().out == "rollout: 1/5 questions, 2 tok/s, 0 forks\n"
