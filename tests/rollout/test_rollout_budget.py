"""A budget in tool calls or generated tokens, in place of a number of trajectories."""

import numpy as np
import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.core.rollout_budget import RolloutBudget
from rllib_arpo.core.rollout_history import EarlierQuestion, RolloutHistory
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.rollout.settings import RolloutSettings
from tests.helpers.configs import small_config
from tests.helpers.scripts import answer, tool

#: Begins every response of `ScriptedEnv`'s tool.
RESPONSE = 50


def calls_then_answers(num_calls: int):
    """Every path calls the tool so often; each turn has two tokens."""

    def script(request, times_asked):
        return answer(11) if request.prompt_token_ids.count(RESPONSE) == num_calls else tool(10)

    return script


def spent(tree: QuestionTree) -> tuple[int, int]:
    """Executed calls and generated tokens, a shared turn once."""
    turns = [turn for t in tree.trajectories for turn in t.turns]
    return sum(turn.tool_call is not None for turn in turns), sum(len(turn.token_ids) for turn in turns)


def test_forks_and_top_ups_are_taken_until_the_calls_are_spent(sample_tree):
    """Nine calls, paths of three, one child wherever the rest pays for it.

    Response 1: the root is to spend 3 calls, a fork 2: one, "0.0". Response 2 of both: a fork costs 1: "0.1", "0.0.0".
    Response 3 of the four: each may yet call, so 11 are spoken for, and none forks. They answer: 7 are spent, and
    one more path of three comes closer to 9 than none.
    """
    sampled = sample_tree(
        calls_then_answers(3),
        branching="always",
        num_rollouts=99,
        budget=RolloutBudget("tool_calls", 9, path_cost=3.0),
        deterministic=True,
    )
    parents = {t.agent_id: (t.parent, t.num_inherited_turns) for t in sampled.tree.trajectories}
    assert parents == {
        "0": (None, 0), "0.0": ("0", 1), "0.1": ("0", 2), "0.0.0": ("0.0", 2), "1": (None, 0),
    }  # fmt: skip
    assert spent(sampled.tree)[0] == 10


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("allocation", ["first_come", "ranked", "ranked_over_tree"])
@pytest.mark.parametrize(("width", "roots"), [(1, 1), (1, 4), (7, 2)])
@pytest.mark.parametrize(("unit", "amount", "path_cost"), [("tool_calls", 96, 6.0), ("generated_tokens", 200, 14.0)])
def test_about_the_budget_is_spent_whatever_the_shape(
    sample_tree, unit, amount, path_cost, width, roots, allocation, deterministic
):
    sampled = sample_tree(
        calls_then_answers(6),
        branching="random",
        random_fork_probability=0.4,
        branch_width=width,
        num_initial_rollouts=roots,
        num_rollouts=99,
        budget=RolloutBudget(unit, amount, path_cost),
        budget_allocation=allocation,
        deterministic=deterministic,
    )
    calls, tokens = spent(sampled.tree)
    assert abs((calls if unit == "tool_calls" else tokens) - amount) <= path_cost / 2
    assert any(t.parent for t in sampled.tree.trajectories)


def test_paths_of_different_lengths_cost_more_than_the_budget(sample_tree):
    """The documentation's number: another call follows three of four, so that paths of every length go on alike."""
    rng = np.random.default_rng(0)

    def script(request, _times_asked):
        return tool(10) if rng.random() < 0.75 else answer(11)

    history, spending = RolloutHistory(8), []
    for question in range(40):
        cost = history.reference().path_costs.get("tool_calls", 6.0)
        tree = sample_tree(
            script,
            question=question,
            branching="always",
            branch_width=7,
            num_rollouts=99,
            num_initial_rollouts=2,
            budget=RolloutBudget("tool_calls", 96, cost),
            deterministic=True,
        ).tree
        history.extend([EarlierQuestion.of(tree, entropy_window=1)])
        spending.append(spent(tree)[0] / 96)
    assert np.mean(spending[8:]) == pytest.approx(1.6, abs=0.15)


def test_paths_that_are_shorter_than_foreseen_are_topped_up_until_the_budget_is_spent(sample_tree):
    budget = RolloutBudget("tool_calls", 20, path_cost=7.0)
    sampled = sample_tree(calls_then_answers(2), branching="never", num_rollouts=99, budget=budget)
    assert 20 - 7 / 2 < spent(sampled.tree)[0] <= 20


def test_there_are_never_more_than_m_trajectories(sample_tree):
    """A model that calls no tool spends nothing."""
    budget = RolloutBudget("tool_calls", 96, path_cost=1.0)
    sampled = sample_tree(calls_then_answers(0), branching="never", num_rollouts=5, budget=budget)
    assert len(sampled.tree.trajectories) == 5


def test_the_cost_of_a_path_is_that_of_the_last_questions():
    config = ARPOConfig().adaptive_rollout(
        num_rollouts=64, num_initial_rollouts=4, max_tool_calls=8, rollout_budget={"tool_calls": 96}
    )
    history = RolloutHistory(2)
    unknown = RolloutSettings.from_config(config, explore=True, rollout_reference=history.reference())
    assert unknown.budget == RolloutBudget("tool_calls", 96, path_cost=8.0)
    for calls in ([100], [5, 7], [6, 6]):
        history.extend([EarlierQuestion({}, path_costs={"tool_calls": calls, "generated_tokens": [9]})])
    known = RolloutSettings.from_config(config, explore=True, rollout_reference=history.reference())
    assert known.budget == RolloutBudget("tool_calls", 96, path_cost=6.0)
    assert known.num_initial_rollouts == 4
    without_forks = config.copy(copy_frozen=False).adaptive_rollout(branching="never")
    settings = RolloutSettings.from_config(without_forks, explore=True, rollout_reference=history.reference())
    assert settings.num_initial_rollouts == 16
    assert RolloutSettings.from_config(config, explore=False).budget is None


@pytest.mark.parametrize("budget", [{}, {"calls": 3}, {"tool_calls": 0}, {"tool_calls": 9, "generated_tokens": 9}, 96])
def test_a_budget_of_another_form_is_refused(budget, model_folder):
    expected = r"rollout_budget=.*: must be a dict with one of 'tool_calls', 'generated_tokens' and a finite number > 0"
    with pytest.raises(ValueError, match=expected):
        small_config(model_folder).adaptive_rollout(rollout_budget=budget).validate()
