"""Lines of Ray's workers: those for the terminal, and those that Ray prints into the log."""

from __future__ import annotations

import json

import pytest
from ray.experimental.tqdm_ray import RAY_TQDM_MAGIC

from rllib_arpo.terminal import RunTerminal
from rllib_arpo.tracking import worker_lines
from rllib_arpo.tracking.console import evaluation_line, training_line
from rllib_arpo.tracking.worker_lines import WorkerLines
from tests.helpers.screens import on_a_terminal, screen_of

ITERATION = training_line({"training_iteration": 7})
EVALUATION = evaluation_line({})
WARNING = "WARNING rllib_arpo: An env runner failed."
PROGRESS = "rollout 1: 3/6 questions, 571 tok/s, 12 forks, 3 tools in flight"
#: Of others.
NOISE = ["iteration 7", " iter    7  reward", "WARNING: rllib_arpo", "evaluation", "", "Loading weights: 0%"]


def bar(name: str, done: int) -> str:
    state = {"desc": name, "x": done, "total": 6, "unit": "questions", "uuid": name, "closed": done == 6}
    return json.dumps({"__magic_token__": RAY_TQDM_MAGIC, **state})


def test_what_is_for_the_terminal_and_what_ray_prints(tmp_path, capfd):
    rays = []
    data = {"ip": "1.2.3.4", "pid": 7, "is_err": False}
    with RunTerminal(tmp_path / "run.log", live=False) as terminal:
        lines = WorkerLines(terminal)
        lines.take(rays.append, {**data, "lines": [NOISE[0], EVALUATION, *NOISE[1:], WARNING]})
        lines.take(rays.append, {**data, "lines": [PROGRESS, bar("rollout 1", 3), WARNING, ITERATION]})
        lines.wait_for({"training_iteration": 7})
    lines.take(rays.append, {**data, "lines": [ITERATION]})
    assert capfd.readouterr().out.splitlines() == [EVALUATION, WARNING, PROGRESS, ITERATION]
    # A bar has no place where there is no live view; it may also be one of the user's.
    assert rays == [{**data, "lines": given} for given in (NOISE, [bar("rollout 1", 3)], [ITERATION])]


def test_a_line_that_ray_has_lost_is_shown_once_from_the_result(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(worker_lines, "PATIENCE_S", 0.01)
    with RunTerminal(tmp_path / "run.log", live=False) as terminal:
        lines = WorkerLines(terminal)
        lines.take(pytest.fail, {"lines": [ITERATION]})
        lines.wait_for({"training_iteration": 8})
        late, rays = training_line({"training_iteration": 8}), []
        lines.take(rays.append, {"lines": [late]})
    assert rays == [{"lines": [late]}]
    assert capfd.readouterr().out.splitlines() == [ITERATION, late]


def rows_after(shown: list[str], tmp_path) -> set[str]:
    """The rows of the live view after these lines of workers."""
    with RunTerminal(tmp_path / "run.log", live=False) as terminal:
        rows, terminal.live = {}, True
        terminal.show = lambda key, *_row: rows.update({key: key})
        terminal.hide = lambda key: rows.pop(key, None)
        terminal.hide_all = rows.clear
        WorkerLines(terminal).take(lambda _data: None, {"lines": shown})
        return set(rows)


@pytest.mark.parametrize(
    ("shown", "rows"),
    [
        ([bar("1", 0), bar("2", 5)], {"1", "2"}),
        ([bar("1", 0), bar("1", 6), WARNING], {"1"}),
        ([bar("1", 0), bar("1", 6), bar("2", 0)], {"2"}),
        ([bar("1", 0), bar("1", 6), ITERATION], set()),
        ([bar("1", 0), EVALUATION, bar("1", 6)], set()),
        ([bar("1", 0), EVALUATION, bar("1", 5)], {"1"}),
        ([bar("1", 0)[:-3]], set()),
    ],
)
def test_a_bar_stays_until_it_is_closed_and_the_next_line_or_bar_comes(shown, rows, tmp_path):
    assert rows_after(shown, tmp_path) == rows


@pytest.mark.parametrize(
    "line", [bar("1", 0)[:-3], json.dumps({"__magic_token__": RAY_TQDM_MAGIC}), f"[{RAY_TQDM_MAGIC!r}"]
)
def test_a_line_that_is_not_a_bar_is_left_to_ray(line, tmp_path):
    rays = []
    with RunTerminal(tmp_path / "run.log", live=False) as terminal:
        terminal.live = True
        WorkerLines(terminal).take(rays.append, {"lines": [line]})
    assert rays == [{"lines": [line]}]


def test_bars_are_drawn_below_the_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with on_a_terminal() as pty, RunTerminal(tmp_path / "run.log", live=True) as terminal:
        WorkerLines(terminal).take(pytest.fail, {"lines": [bar("rollout 1", 3), WARNING, ITERATION]})
    assert screen_of(pty.text) == [WARNING, ITERATION, ""]
    assert "3/6 questions" in pty.text


def test_nobody_listens_without_a_terminal_of_a_run():
    assert worker_lines.listen() is None
