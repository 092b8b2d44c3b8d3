"""The runner of release tests, with scripts of a second; and how learning is broken on purpose."""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
import pytest

from release import release_tests
from release.evidence.broken_recipe import Rewards, shuffled, swapped
from release.release_tests import ReleaseTest, chosen, main, read_tests, run, verdict
from rllib_arpo.rollout.episodes import episode_to_tree, tree_to_episode
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def make_test(script: str = "python -c pass", **more) -> ReleaseTest:
    return ReleaseTest(name="one", script=script, timeout_s=60, frequency="nightly", num_gpus=0, **more)


def figures(passed: bool) -> dict:
    return {"passed": [passed], "success_metric": "reward", "best_value": 0.25, "target_value": 0.5}


@pytest.mark.parametrize(
    ("must_fail", "status", "found", "why"),
    [
        (False, 0, None, None),
        (False, 3, None, "ended with 3"),
        (False, 0, True, None),
        (False, 0, False, "reward did not reach 0.5: 0.250"),
        (True, 0, False, None),
        (True, 0, True, "reward reached 0.5: 0.250"),
        (True, 1, None, "ended with 1"),
        (True, 0, None, "wrote no figures, so that nobody knows whether it missed its metric"),
    ],
)
def test_a_test_passes_by_its_status_and_its_metric(must_fail, status, found, why):
    assert verdict(make_test(must_fail=must_fail), status, None if found is None else figures(found)) == why


def test_a_script_writes_its_figures_and_its_log(tmp_path):
    code = f"import os; print('hello'); open(os.environ['TEST_OUTPUT_JSON'], 'w').write({json.dumps(figures(False))!r}"
    code = code.replace("true", "True") + ")"
    command = [sys.executable, "-c", code]
    assert run(make_test(), command, tmp_path) == "reward did not reach 0.5: 0.250"
    assert run(make_test(must_fail=True), command, tmp_path) is None
    assert (tmp_path / "one.log").read_text() == "hello\n"
    # Figures of an earlier run do not count.
    assert "wrote no figures" in run(make_test(must_fail=True), [sys.executable, "-c", ""], tmp_path)


def test_a_script_that_takes_too_long_is_ended_with_its_children(tmp_path):
    test = ReleaseTest("slow", "", timeout_s=0.5, frequency="nightly", num_gpus=0)
    begin = time.monotonic()
    assert run(test, ["sh", "-c", "sleep 100 & sleep 100"], tmp_path) == "took longer than 0.5 s"
    assert time.monotonic() - begin < 20


def test_tests_are_chosen_by_name_or_by_their_frequency():
    tests = read_tests()
    assert [test.name for test in chosen(tests, ["wheel", "trails_small_arpo"])] == ["wheel", "trails_small_arpo"]
    nightly = chosen(tests, [])
    assert {test.frequency for test in nightly} == {"nightly"}
    assert {"trails_small_arpo", "trails_small_swapped", "wheel"} <= {test.name for test in nightly}
    with pytest.raises(ValueError, match="There is no release test 'wheels'; there are trails_smollm2_135m_arpo, "):
        chosen(tests, ["wheels"])


def test_a_variable_without_a_value_is_named_before_anything_runs(tmp_path, monkeypatch, capsys):
    assert make_test("python a.py --data {data}").command({"data": "b c"}) == [sys.executable, "a.py", "--data", "b c"]
    monkeypatch.setattr(release_tests, "run", lambda *_: pytest.fail("ran"))
    assert main(["wheel", "mixture_smollm2_135m_arpo", "--output", str(tmp_path)]) == 2
    expected = "error: mixture_smollm2_135m_arpo: its script has {data}; say --set data=VALUE.\n"
    assert capsys.readouterr().err == expected
    with pytest.raises(argparse.ArgumentTypeError, match="'data' is not NAME=VALUE"):
        release_tests._variable("data")


def test_what_failed_is_counted_and_what_needs_gpus_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(release_tests, "num_gpus_here", lambda: 0)
    monkeypatch.setattr(release_tests, "run", lambda test, *_: "ended with 1" if test.name == "wheel" else None)
    names = ["wheel", "trails_small_arpo", "deepsearch_qwen3_8b_arpo"]
    assert main([*names, "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"wheel: FAILED, ended with 1 (see {tmp_path / 'wheel.log'}), 0 s",
        "trails_small_arpo: passed, 0 s",
        "deepsearch_qwen3_8b_arpo: not run, needs 8 GPUs and there are 0",
    ]


def question():
    """Two roots; "0" has the forks "0.0" and "0.1", and the first of them one of its own."""

    def fork(name: str, reward: float):
        return make_trajectory(name, [make_turn([5])], num_inherited_turns=1, reward=reward)

    roots = [make_trajectory(str(i), [make_turn([1, 2], [3]), make_turn([4])], reward=i) for i in range(2)]
    return tree_to_episode(make_tree([9], [*roots, fork("0.0", 2), fork("0.1", 3)]))


def rewards(episode) -> dict[str, float]:
    return {t.agent_id: t.reward for t in episode_to_tree(episode).trajectories}


def test_forks_and_their_parents_trade_rewards():
    episode = question()
    assert rewards(episode) == {"0": 0, "1": 1, "0.0": 2, "0.1": 3}
    Rewards(swapped)(batch={}, episodes=[episode])
    # "0.0" trades with "0", which then trades with "0.1".
    assert rewards(episode) == {"0": 3, "1": 1, "0.0": 0, "0.1": 2}
    assert swapped(["0", "0.0", "0.0.0"]) == ["0.0", "0.0.0", "0"]


def test_shuffled_rewards_stay_in_their_question():
    orders = [shuffled(0)(["0", "1", "0.0", "0.1"]) for _ in range(2)]
    assert all(sorted(order) == ["0", "0.0", "0.1", "1"] for order in orders)
    one = shuffled(0)
    drawn = np.array([[order.index("0") for order in (one(["0", "1", "2"]) for _ in range(300))]])
    assert {0, 1, 2} == set(drawn.flat)
