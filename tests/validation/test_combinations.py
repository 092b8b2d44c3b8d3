"""Keys that must fit together: those of the tree, of overlap, of the update."""

from __future__ import annotations

import pytest

from tests.helpers.configs import small_config
from tests.validation.sentences import message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_rollouts": 1}, "num_initial_rollouts=2: must not exceed num_rollouts=1."),
        (
            {"branching": "random"},
            "random_fork_probability=None: branching='random' needs a probability; it has no default.",
        ),
        ({"max_weight_lag": 1}, "max_weight_lag=1: needs num_env_runners >= 1."),
        (
            {"max_weight_lag": 1, "num_env_runners": 1, "deterministic": True},
            "deterministic=True: with max_weight_lag=1 new weights arrive in the middle of trajectories, so that "
            "trees depend on timing.",
        ),
        (
            {"baseline": "tree", "branching": "never"},
            "baseline='tree': with branching='never' a tree has one leaf; use 'group', which is the same.",
        ),
        (
            {"entropy_advantage_coeff": 0.2},
            "entropy_advantage_coeff=0.2: needs record_entropies='all', the entropy of every token.",
        ),
        (
            {"keep_clipped_gradient": True},
            "keep_clipped_gradient=True: an update of a single step clips nothing; set a questions_per_minibatch "
            "below questions_per_batch, or num_epochs > 1.",
        ),
        (
            {"entropy_baseline_quantile": 0.5},
            "entropy_baseline_quantile=0.5: belongs to entropy_baseline='running', not to 'initial'.",
        ),
        (
            {"entropy_baseline_questions": 9},
            "entropy_baseline_questions=9: needs entropy_baseline='running' or a pre_monitoring_sensitivity.",
        ),
        (
            {"entropy_baseline": "running", "branching": "always"},
            "entropy_baseline='running': branching='always' does not look at the entropy.",
        ),
        (
            {"consecutive_fork_penalty": 0.1, "branching": "random", "random_fork_probability": 0.5},
            "consecutive_fork_penalty=0.1: branching='random' has no P.",
        ),
        (
            {"branching": "random", "random_fork_probability": 0.5, "budget_allocation": "ranked"},
            "budget_allocation='ranked': branching='random' must ignore the entropy.",
        ),
        (
            {"max_tokens_per_pass": 500},
            "max_tokens_per_pass=500: must be at least max_context_tokens=1024, so that one trajectory fits into a "
            "pass.",
        ),
        ({"max_response_tokens": 2000}, "max_response_tokens=2000: must not exceed max_context_tokens=1024."),
        (
            {"kl_in_reward": True, "kl_coeff": 0.1},
            "kl_in_reward=True: needs branching='never', since a reward-to-go differs between siblings.",
        ),
        ({"kl_in_reward": True, "branching": "never"}, "kl_in_reward=True: needs a kl_coeff > 0."),
        (
            {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked_over_tree"},
            "consecutive_fork_penalty=0.1: with budget_allocation='ranked_over_tree' a node may be decided before "
            "those above it.",
        ),
        (
            {"random_fork_probability": 0.0, "branching": "always"},
            "random_fork_probability=0.0: belongs to branching='random', not to 'always'.",
        ),
    ],
)
def test_one_sentence_names_the_key(model_folder, changes, expected):
    assert message(small_config(model_folder).update_from_dict(changes)) == expected


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
