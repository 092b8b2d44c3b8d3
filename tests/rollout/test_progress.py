"""The lines of a rollout's progress."""

from rllib_arpo.rollout.progress import RolloutProgress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_every_15_seconds_and_questions_that_join_add_to_the_total(capsys):
    progress = RolloutProgress("rollout", clock=(clock := Clock()))
    progress.begin(2)
    progress.begin(3)
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


def test_new_weights_or_another_label_begin_anew_with_the_questions_that_are_left(capsys):
    """Sampling never pauses with `max_weight_lag`."""
    progress = RolloutProgress("rollout", clock=(clock := Clock()))
    for begun in ((8, "rollout", 1), (8, "rollout", 2), (2, "evaluation", 2), (7, "evaluation", 2)):
        progress.begin(*begun)
        clock.now += 20
        progress.update(questions=5, tokens=100, forks=1)
    progress.end()
    progress.begin(4, "rollout", 2)
    clock.now += 20
    progress.update(questions=1)
    assert capsys.readouterr().out == (
        "rollout: 5/8 questions, 5 tok/s, 1 forks, 0 tools in flight\n"
        "rollout: 5/11 questions, 5 tok/s, 1 forks, 0 tools in flight\n"
        "evaluation: 5/8 questions, 5 tok/s, 1 forks, 0 tools in flight\n"
        "evaluation: 10/15 questions, 5 tok/s, 2 forks, 0 tools in flight\n"
        "rollout: 1/4 questions, 0 tok/s, 0 forks, 0 tools in flight\n"
    )


def test_it_prints_nothing_if_it_is_not_shown(capsys):
    progress = RolloutProgress("rollout", False, clock=(clock := Clock()))
    progress.begin(8)
    clock.now += 20
    progress.update(questions=3, tokens=400, forks=5, tools=3)
    assert capsys.readouterr().out == ""
