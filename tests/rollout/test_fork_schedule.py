"""Ranked and deterministic fork decisions, which must not depend on the timing of tools or of other questions."""

import asyncio
import itertools
from collections import Counter

import numpy as np
import pytest

from rllib_arpo.core.rollout_history import RolloutReference
from rllib_arpo.core.token_counts import all_path_tokens
from rllib_arpo.engine.scripted_engine import RandomPolicy
from rllib_arpo.rollout.fork_schedule import ForkCandidate, at_random, make_schedule
from rllib_arpo.rollout.seeds import request_seed
from tests.helpers.scripted_env import ANSWER, PROMPT, TOOL, in_question
from tests.helpers.scripts import answer, tool

#: For schedules that draw nothing.
NO_DRAWS = None


def candidate(agent_id: str, num_turns: int, delta: float = 0.0) -> ForkCandidate:
    return ForkCandidate(agent_id, num_turns, delta, [], agent_id)


def test_agents_are_ordered_by_number_and_rises_by_size():
    for allocation, order in (("first_come", ["0", "0.0", "2", "10"]), ("ranked", ["10", "0.0", "2", "0"])):
        schedule = make_schedule(allocation, NO_DRAWS, deterministic=True)
        for agent, rise in (("10", 0.3), ("2", 0.1), ("0.0", 0.1), ("0", -0.2)):
            schedule.add(candidate(agent, 1, rise))
        assert [c.agent_id for c in schedule.due()] == order


def test_at_random_trees_take_turns_and_every_order_within_a_tree_is_equally_likely():
    candidates = [candidate("1", 1), candidate("0", 2), candidate("0.0", 3), candidate("0", 1)]
    rng = np.random.default_rng(0)
    orders = Counter(tuple((c.agent_id, c.num_turns) for c in at_random(candidates, rng)) for _ in range(6000))
    own = [("0", 1), ("0", 2), ("0.0", 3)]
    assert set(orders) == {(a, ("1", 1), b, c) for a, b, c in itertools.permutations(own)}
    # 1,000 each; four standard deviations.
    assert all(abs(count - 1000) < 4 * np.sqrt(6000 * 5 / 36) for count in orders.values())


def test_a_late_decision_forks_the_state_at_the_node(sample_tree):
    """ "0" is two tool calls further when "1" passes the turn; the fork still begins after the first."""
    node = (*PROMPT, 10, TOOL, 50, 0)
    script = {
        PROMPT: [tool(10), answer(11, delay=30)],
        node: [tool(20, 3.0), answer(21)],
        (*node, 20, TOOL, 50, 1): tool(30, 0.5),
        (*node, 20, TOOL, 50, 1, 30, TOOL, 50, 2): answer(40, 0.5),
    }
    sampled = sample_tree(script, num_rollouts=3, num_initial_rollouts=2, budget_allocation="ranked")
    assert sampled.shape() == {
        "0": (None, 0, [(10, TOOL), (20, TOOL), (30, TOOL), (40, ANSWER)], "answer"),
        "1": (None, 0, [(11, ANSWER)], "answer"),
        "0.0": ("0", 1, [(21, ANSWER)], "answer"),
    }
    assert ("0", "0@1") in sampled.env.forks and ("0@1", "0.0") in sampled.env.forks


def test_trees_do_not_depend_on_how_many_questions_run_at_a_time(sample_questions):
    """The tools of question 0 are slow, so the others, which do not wait for it, are over before; none is dropped."""
    budget = {"deterministic": True, "num_rollouts": 4, "num_initial_rollouts": 2}
    slow = {"hooks": {"step": in_question(0, lambda *_: asyncio.sleep(0.3))}}
    together, alone = (sample_questions(range(8), slow, num_envs=number, **budget) for number in (4, 1))
    assert [question.number for question in alone] == [*range(8)] != [question.number for question in together]
    lengths = [{q.number: all_path_tokens(q.tree).tolist() for q in sample} for sample in (together, alone)]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"budget_allocation": "ranked"},
        {"budget_allocation": "ranked_over_tree"},
        {"budget_allocation": "random_over_tree", "branching": "always"},
        {"branching": "probability"},
        {"pre_monitoring_sensitivity": 3.0, "rollout_reference": RolloutReference({"": 1.1}, 1.1)},
        {"entropy_baseline": "running", "rollout_reference": RolloutReference({"": 1.1}, 1.1)},
    ],
)
def test_deterministic_trees_do_not_depend_on_the_timing_of_tools(sample_tree, changes):
    policy = RandomPolicy(256, replies=[[7, TOOL], [8, TOOL], [9, TOOL], [7, ANSWER], [9, ANSWER]])

    def tree(delays):
        return sample_tree(
            policy.reply, {"delays": delays}, deterministic=True, num_rollouts=9, num_initial_rollouts=4, **changes
        )

    trees = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        agents = [str(i) for i in range(9)] + [f"{i}.{j}" for i in range(4) for j in range(3)]
        trees.append(tree({(a, turn): rng.uniform(0, 0.05) * seed for a in agents for turn in range(6)}))
    shapes = [(t.shape(), list(t.shape())) for t in trees]
    assert shapes[0] == shapes[1] == shapes[2] == shapes[3]
    assert any(t.parent for t in trees[0].tree.trajectories)
    assert len({r.seed for r in trees[0].engine.submitted}) == len(trees[0].engine.submitted)
    assert {r.seed for r in sample_tree({PROMPT: answer(10)}, num_rollouts=1).engine.submitted} == {None}


@pytest.mark.parametrize("slow", ["0", "1"])
@pytest.mark.parametrize("allocation", ["first_come", "ranked"])
def test_a_refused_fork_counts_when_its_node_is_decided_whatever_the_timing(sample_tree, allocation, slow):
    """ "0" cannot be copied behind its second response, which it may reach long before "1" has its first."""

    def refuse(env, parent, child):
        if child == "0@2":
            raise OSError("no copy of the tool's state")

    sampled = sample_tree(
        lambda request, _times: tool(10) if request.prompt_token_ids.count(50) < 2 else answer(11),
        {"delays": {(slow, 0): 0.1}, "hooks": {"fork": refuse}},
        num_rollouts=6,
        num_initial_rollouts=2,
        branching="always",
        budget_allocation=allocation,
        deterministic=True,
    )
    assert list(sampled.shape()) == ["0", "0.0", "1", "1.0", "2", "3"]


def test_seeds_differ_in_every_argument_and_fit_into_63_bits():
    arguments = [(0, 0, "0", 0), (1, 0, "0", 0), (0, 1, "0", 0), (0, 0, "1", 0), (0, 0, "0", 1), (0, 0, "0.0", 0)]
    seeds = [request_seed(*a) for a in arguments]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(3, 5, "2.0.1", 4) == request_seed(3, 5, "2.0.1", 4)
