import logging

import pytest

from rllib_arpo.tracking.console import ConsoleCallback, Messages, evaluation_line, training_line

RESULT = {
    "training_iteration": 12,
    "env_runners": {
        "episode_return_mean": 0.4123,
        "accuracy": 0.3812,
        "tool_calls_per_trajectory": 1.94,
        "entropy": {"initial": 0.7, "delta": 0.0312},
        "forks_per_question": 6.2,
    },
    "timers": {"rollout": 12.34, "update": 8.06, "sync": 0.31},
}
LARGE = {
    "training_iteration": 1200,
    "env_runners": RESULT["env_runners"] | {"episode_return_mean": -0.9, "forks_per_question": 18.0},
    "timers": {"rollout": 1312.34, "update": 108.06, "sync": 10.31},
}


@pytest.mark.parametrize(("result", "line"), [
    (RESULT, "iter   12  reward  0.412  acc 0.38  tools 1.9  dH +0.031  forks  6.2  roll 12.3 upd 8.1 sync 0.3 s"),
    (LARGE, "iter 1200  reward -0.900  acc 0.38  tools 1.9  dH +0.031  forks 18.0  roll 1312 upd 108 sync 10.3 s"),
    ({"training_iteration": 1, "env_runners": {"accuracy": float("nan")}},
     "iter    1  reward      -  acc    -  tools   -  dH      -  forks    -  roll - upd - sync - s"),
])  # fmt: skip
def test_the_line_of_an_iteration(result, line):
    assert training_line(result) == line


def test_the_line_of_an_evaluation():
    metrics = {"env_runners": {"accuracy": 0.55, "format_valid": 0.98, "episode_return_mean": 0.56, "num_episodes": 60}}
    assert evaluation_line(metrics) == "evaluation  accuracy 0.550  format 0.980  reward  0.560  60 questions"
    assert evaluation_line({}) == "evaluation  accuracy     -  format     -  reward      -  - questions"


def test_the_callback_says_messages_the_evaluation_and_the_iteration(capsys, monkeypatch):
    """Without the terminal of a run, the trial's process has printed its warnings already."""
    result = RESULT | {"messages": {"0": "WARNING rllib_arpo: hot", "1": "sampled"}, "evaluation": {}}
    expected = ["sampled", evaluation_line({}), training_line(RESULT)]
    ConsoleCallback().on_trial_result(iteration=0, trials=[], trial=None, result=result)
    assert capsys.readouterr().out.splitlines() == expected
    monkeypatch.setattr("rllib_arpo.tracking.console.open_terminal", lambda: True)
    ConsoleCallback().on_trial_result(iteration=0, trials=[], trial=None, result=result)
    assert capsys.readouterr().out.splitlines() == ["WARNING rllib_arpo: hot", *expected]


def test_warnings_wait_for_the_next_result_and_are_printed_unless_the_user_has_set_up_logging(capsys, monkeypatch):
    logger, messages = logging.getLogger("rllib_arpo"), Messages()
    monkeypatch.setattr(logger, "handlers", [messages])
    logger.warning("the user's")
    monkeypatch.setattr(logging.root, "handlers", [])
    logger.info("not told")
    logger.warning("ours")
    assert capsys.readouterr() == ("", "WARNING rllib_arpo: ours\n")
    assert messages.take() == ["WARNING rllib_arpo: the user's", "WARNING rllib_arpo: ours"]
    assert messages.take() == []
