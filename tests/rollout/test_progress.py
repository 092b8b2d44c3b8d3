"""The display of a rollout's progress: lines, a bar, or nothing."""

import sys

from rllib_arpo.rollout.progress import RolloutProgress, progress_mode


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_every_15_seconds_and_questions_that_join_add_to_the_total(capsys):
    progress = RolloutProgress("rollout", "lines", clock=(clock := Clock()))
    progress.begin(2)
    progress.begin(3, "evaluation")
    for _ in range(20):
        clock.now += 1
        progress.update(tokens=100, forks=1)
    progress.update(questions=8)
    progress.end()
    progress.update(tokens=1)
    progress.begin(4, "evaluation")
    clock.now += 20
    progress.update(questions=1, tokens=20)
    assert capsys.readouterr().out == (
        "rollout: 0/5 questions, 100 tok/s, 15 forks, 0 tools in flight\n"
        "evaluation: 1/4 questions, 1 tok/s, 0 forks, 0 tools in flight\n"
    )


def test_a_terminal_gets_a_bar_which_needs_no_running_ray_and_off_shows_nothing(capsys, monkeypatch):
    assert progress_mode() == "lines"
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    for mode, is_shown in (("off", False), (progress_mode(), True)):
        progress = RolloutProgress("rollout", mode, clock=(clock := Clock()))
        progress.begin(8)
        clock.now += 2
        progress.update(questions=3, tokens=400, forks=5, tools=3)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("rollout (200 tok/s, 5 forks, 3 tools in flight):  38%" in err) == ("3.00/8.00" in err) == is_shown
        progress.end()
