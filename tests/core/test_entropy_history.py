from __future__ import annotations

import json

import pytest

from rllib_arpo.core.entropy_history import NO_HISTORY, EntropyHistory


def history() -> EntropyHistory:
    of_two = EntropyHistory(num_questions=2)
    of_two.add({"search": [9.0]})
    of_two.add({"search": [1.0, 2.0, 6.0], "python": [0.5]})
    of_two.add({"search": [3.0]})
    return of_two


def test_mean_per_tool_of_the_last_questions():
    reference = history().reference()
    assert reference.by_tool == {"search": pytest.approx(3.0), "python": 0.5}
    assert reference.after_tool == pytest.approx(12.5 / 5)


def test_a_quantile_is_of_each_tool_and_leaves_the_mean_over_all_alone():
    reference = history().reference(0.5)
    assert reference.by_tool == {"search": pytest.approx(2.5), "python": 0.5}
    assert reference.after_tool == pytest.approx(12.5 / 5)


def test_nothing_is_known_at_the_start():
    empty = EntropyHistory(3)
    assert empty.reference() == NO_HISTORY
    empty.add({})
    assert empty.reference(0.9) == NO_HISTORY


def test_the_state_survives_json_and_keeps_the_order():
    restored = EntropyHistory(2)
    restored.set_state(json.loads(json.dumps(history().get_state())))
    assert restored.reference() == history().reference()
    restored.add({"python": [1.5]})
    # The oldest of the two is gone.
    assert restored.reference().by_tool == {"search": 3.0, "python": 1.5}
