"""Learning is broken on purpose: the trajectories of a question get the rewards of others."""

import numpy as np

from release.evidence.broken_recipe import Rewards, shuffled, swapped
from rllib_arpo.rollout.episodes import episode_to_tree, tree_to_episode
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def question():
    """Two roots; "0" has the forks "0.0" and "0.1", and the first of them one of its own."""

    def fork(name: str, reward: float):
        return make_trajectory(name, [make_turn([5])], num_inherited_turns=1, reward=reward)

    roots = [make_trajectory(str(i), [make_turn([1, 2], [3]), make_turn([4])], reward=i) for i in range(2)]
    return tree_to_episode(make_tree([9], [*roots, fork("0.0", 2), fork("0.1", 3)]))


def rewards(episode) -> dict[str, float]:
    tree = episode_to_tree(episode)
    return dict(zip(tree.by_id(), tree.returns().tolist(), strict=True))


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
