"""The lines of a rollout's progress."""

from rllib_arpo.rollout.progress import RolloutProgress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_every_15_seconds_and_questions_that_join_add_to_the_total(capsys):
    progress = RolloutProgress("rollout", clock=(clock := Clock()))
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


def test_it_prints_nothing_if_it_is_not_shown(capsys):
    progress = RolloutProgress("rollout", False, clock=(clock := Clock()))
    progress.begin(8)
    clock.now += 20
    progress.update(questions=3, tokens=400, forks=5, tools=3)
    assert capsys.readouterr().out == ""
