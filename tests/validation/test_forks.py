"""Fork rules, their order and their inputs: ARPO refuses combinations in which it would ignore a key."""

from __future__ import annotations

import pytest

from tests.helpers.configs import small_config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked_over_tree"},
            "consecutive_fork_penalty=0.1: with budget_allocation='ranked_over_tree' a node may be decided before "
            "those above it.",
        ),
        (
            {"consecutive_fork_penalty": 0.1, "budget_allocation": "random_over_tree"},
            "consecutive_fork_penalty=0.1: with budget_allocation='random_over_tree' a node may be decided before "
            "those above it.",
        ),
        (
            {"random_fork_probability": 0.3},
            "random_fork_probability=0.3: belongs to branching='random', not to 'threshold'.",
        ),
        (
            {"random_fork_probability": 0.0, "branching": "always"},
            "random_fork_probability=0.0: belongs to branching='random', not to 'always'.",
        ),
    ],
)
def test_one_sentence_names_the_key(model_folder, changes, expected):
    with pytest.raises(ValueError) as raised:
        small_config(model_folder).update_from_dict(changes).validate()
    assert str(raised.value) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked"},
        {"random_fork_probability": 0.3, "branching": "random", "budget_allocation": "random_over_tree"},
        # "never" switches all of it off, for baselines.
        {"random_fork_probability": 0.3, "branching": "never"},
    ],
)
def test_what_belongs_together_is_valid(model_folder, changes):
    small_config(model_folder).update_from_dict(changes).validate()
