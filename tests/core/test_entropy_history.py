from __future__ import annotations

import pytest

from rllib_arpo.core.entropy_history import NO_HISTORY, EntropyReference, entropy_reference

QUESTIONS = [{"search": [1.0, 2.0, 6.0], "python": [0.5]}, {}, {"search": [3.0]}]


def test_a_window_counts_once_whoevers_question_it_is_of():
    assert entropy_reference(QUESTIONS) == EntropyReference({"search": 3.0, "python": 0.5}, 2.5)


def test_a_quantile_is_of_the_levels_of_each_tool():
    assert entropy_reference(QUESTIONS, 1.0) == EntropyReference({"search": 6.0, "python": 0.5}, 2.5)
    assert entropy_reference(QUESTIONS, 0.5).by_tool["search"] == pytest.approx(2.5)


def test_without_a_level_nothing_is_known():
    assert entropy_reference([]) == entropy_reference([{}, {"search": []}]) == NO_HISTORY
