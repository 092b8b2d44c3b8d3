"""The curves of runs with a mistake: what docs/metrics.md says of them, and how they are made and drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from release.symptoms import cases
from release.symptoms.pictures import LEARNER, PICTURES, ROLLOUT, draw, of_case, of_study, timeout_share


def mean(case: str, metric: str, first: int = 1) -> float:
    return float(np.mean([value for update, value in of_case(case, metric).items() if update >= first]))


def test_all_cases_have_all_updates():
    for case in cases.CASES:
        assert list(of_case(case, f"{ROLLOUT}/accuracy")) == list(range(1, cases.ITERATIONS + 1))


def test_without_signal_no_question_has_one_from_the_second_update_on():
    without = of_study("one-step-8e-4", 101, "groups_without_signal")
    assert (without[1], without[2], without[24]) == (1, 8, 8)
    assert sum(count == 8 for count in without.values()) == 22
    assert max(of_study("one-step-4e-4", 101, "groups_without_signal").values()) == 1


def test_at_a_low_temperature_the_entropy_is_a_quarter_and_few_questions_have_a_right_answer():
    after_tool, pass_at_k = f"{ROLLOUT}/entropy/after_tool", f"{ROLLOUT}/pass_at_k"
    assert mean("cold", after_tool) / mean("healthy", after_tool) == pytest.approx(0.25, abs=0.05)
    assert (of_case("cold", pass_at_k)[1], max(list(of_case("cold", pass_at_k).values())[-6:])) == (0.5, 0.125)
    assert 5 < mean("cold", f"{LEARNER}/groups_without_signal") < 6
    assert mean("healthy", pass_at_k) > 0.95


def test_an_eight_bit_cache_makes_the_gap_27_times_as_large():
    name = f"{LEARNER}/engine_logprob_gap"
    assert mean("fp8", name) / mean("bfloat16", name) == pytest.approx(27, abs=0.5)
    assert mean("healthy", name) < 1e-6
    assert sorted(of_case("fp8", name), key=of_case("fp8", name).get)[-2:] == [23, 22]
    assert min(of_case("fp8", f"{ROLLOUT}/format_valid"), key=of_case("fp8", f"{ROLLOUT}/format_valid").get) == 23
    assert mean("fp8", f"{ROLLOUT}/accuracy", first=13) > mean("fp8", f"{ROLLOUT}/accuracy") > 0.4


def test_where_one_call_in_nine_fails_the_accuracy_stays_where_it_was():
    shares = timeout_share("timeouts")
    assert np.mean(list(shares.values())) == pytest.approx(1 / 9, abs=0.02)
    assert set(timeout_share("healthy").values()) == {0.0}
    assert mean("timeouts", f"{ROLLOUT}/accuracy", first=13) < 0.2 < mean("healthy", f"{ROLLOUT}/accuracy", first=13)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn_from_the_rows_that_are_kept(name, tmp_path):
    panels = PICTURES[name]()
    assert all(curve for panel in panels for curve in panel.lines.values())
    assert draw(name, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_a_metric_that_a_result_lacks_has_no_value():
    result = {"env_runners": {"accuracy": 0.5, "pass_at_k": math.nan, "other": 1.0}}
    assert cases.metrics(result) == {"env_runners/accuracy": 0.5}


def test_a_case_that_is_run_again_replaces_its_rows_alone(tmp_path, monkeypatch):
    def run(name, iterations):
        own = {"case": name, "metric": f"{ROLLOUT}/accuracy", "commit": "abc", "machine": "any"}
        return [own | {"iteration": i, "value": float(iterations)} for i in range(1, iterations + 1)]

    monkeypatch.setattr(cases, "run", run)
    path = tmp_path / "rows.parquet"
    assert cases.run_cases(["fp8", "cold"], path, iterations=3) == 6
    assert cases.run_cases(["cold"], path, iterations=2) == 5
    assert [(row["case"], row["iteration"], row["value"]) for row in cases.read_rows(path)] == [
        ("cold", 1, 2.0),
        ("cold", 2, 2.0),
        ("fp8", 1, 3.0),
        ("fp8", 2, 3.0),
        ("fp8", 3, 3.0),
    ]
