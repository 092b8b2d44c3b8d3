"""`branch_width="planned"`: the returns of earlier questions decide the widths of forks."""

import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.core.rollout_history import NO_HISTORY, EarlierQuestion, RolloutHistory
from rllib_arpo.rollout.metrics import plan_metrics
from rllib_arpo.rollout.settings import RolloutSettings, rollout_reference
from tests.rollout.test_rollout_budget import calls_then_answers

M, N = 8, 2
#: Of the first question: "0" and its three forks, "1" and its three, all at their first response.
LEAVES = ("0", "0.0", "0.1", "0.2", "1", "1.0", "1.1", "1.2")


def config(**changes) -> ARPOConfig:
    settings = {"num_rollouts": M, "num_initial_rollouts": N, "branch_width": "planned"} | changes
    return ARPOConfig().adaptive_rollout(**settings)


@pytest.fixture
def sample(sample_tree):
    """Every path calls twice; every response is forked while budget is left."""

    def run(reference, rewards=(), delay=None):
        settings = RolloutSettings.from_config(config(), explore=True, rollout_reference=reference)
        return sample_tree(
            calls_then_answers(2),
            {"rewards": dict(zip(LEAVES, rewards, strict=False)), "delays": {delay: 0.05}},
            num_rollouts=M,
            num_initial_rollouts=N,
            branching="always",
            branch_width=settings.branching.branch_width,
            rollout_reference=reference,
            deterministic=True,
        )

    return run


@pytest.mark.parametrize(("rewards", "children"), [
    # Within (36 + 36) / 6 = 12, between (18 - 12) / 4: m = sqrt(12 / 1.5) = 2.8. Nothing is known of the second
    # responses: they are as wide as at the start, if anything is left.
    pytest.param((6, 0, 6, 0, 9, 3, 9, 3), {("0", 1): 2, ("0", 2): 2, ("1", 1): 2}, id="two children"),
    pytest.param((6, 0, 6, 0, 6, 0, 6, 0), {("0", 1): 6}, id="all: paths from the prompt are alike"),
    pytest.param((6, 6, 6, 6, 9, 9, 9, 9), {("0", 2): 3, ("1", 2): 3}, id="none: forks are alike"),
    pytest.param((6,) * 8, {("0", 1): 3, ("1", 1): 3}, id="unknown: all are alike"),
])  # fmt: skip
def test_the_widths_follow_the_returns_of_the_question_before(sample, rewards, children):
    first = sample(NO_HISTORY, rewards)
    assert first.children == {("0", 1): 3, ("1", 1): 3}
    history = RolloutHistory(1)
    history.extend([EarlierQuestion.of(first.tree, entropy_window=1, plans_width=True)])
    reference = rollout_reference(history, config())
    # Whichever path is the slow one.
    for delay in [("0", 0), ("1", 0), ("0.0", 1)]:
        assert sample(reference, delay=delay).children == children


def test_the_costs_are_in_the_unit_of_the_budget_and_the_width_at_the_start_is_that_of_its_paths(sample):
    history = RolloutHistory(1)
    history.extend(
        [EarlierQuestion.of(sample(NO_HISTORY, (6, 0, 6, 0, 9, 3, 9, 3)).tree, entropy_window=1, plans_width=True)]
    )
    plans = {}
    for budget in (None, {"tool_calls": 12}, {"generated_tokens": 99}):
        reference = rollout_reference(history, config(rollout_budget=budget))
        plans[str(budget)] = reference.planned_suffixes["tool", 1]
    # Above the first response: one call, two tokens; below: one call, four tokens.
    assert list(plans.values()) == pytest.approx([8**0.5, 8**0.5, 4**0.5])
    assert plan_metrics(rollout_reference(history, config()), M) == {"fork_width_planned": 2.0}
    assert plan_metrics(NO_HISTORY, M) == {}
    assert rollout_reference(history, config(branch_width=7)).planned_suffixes == {}
    # The budget pays 12 / 3 paths.
    paid = RolloutSettings.from_config(config(rollout_budget={"tool_calls": 12}, max_tool_calls=3), explore=True)
    assert paid.branching.branch_width == 1
