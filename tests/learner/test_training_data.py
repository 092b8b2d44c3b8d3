"""The plan of an update."""

import numpy as np
import pytest

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.advantages import MeanAndStd
from rllib_arpo.core.tree import QuestionTree, StopReason
from rllib_arpo.learner.training_data import Minibatch, QuestionBatch
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def question(name: str, lengths: list[int], rewards: list[float] | None = None) -> QuestionTree:
    """A prompt of two tokens and one trajectory per length."""
    rewards = rewards or [0.0] * len(lengths)
    trajectories = [
        make_trajectory(str(i), [make_turn([7] * n)], reward=reward)
        for i, (n, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]
    return make_tree([1, 2], trajectories, name)


def batch(trees: list[QuestionTree], seed: int = 0, **overrides) -> QuestionBatch:
    config = ARPOConfig().update_from_dict({"questions_per_minibatch": 2, "max_response_tokens": 100} | overrides)
    return QuestionBatch.plan([TreeEpisode(tree) for tree in trees], config, seed=seed)


def test_the_last_minibatch_is_smaller_and_not_dropped():
    data = batch([question("a", [1, 2]), question("b", [3]), question("c", [4])])

    data.validate()
    assert data.minibatches == (Minibatch((0, 1), denominator=6.0), Minibatch((2,), denominator=4.0))
    assert [episode.id_ for episode in data.episodes] == ["a", "b", "c"]


def test_masked_trajectories_are_in_neither_denominator_nor_statistics():
    trajectories = [
        make_trajectory("0", [make_turn([7] * 3)], reward=1.0),
        make_trajectory("1", [make_turn([7] * 5)], reward=9.0, stop_reason=StopReason.DEADLINE),
    ]
    data = batch([make_tree([1], trajectories)])

    assert data.minibatches == (Minibatch((0,), denominator=3.0),)
    assert data.statistics == MeanAndStd(mean=1.0, std=0.0)


def test_a_minibatch_in_which_nothing_counts_is_planned_with_denominator_0():
    masked = make_tree([1], [make_trajectory("0", [make_turn([7])], stop_reason=StopReason.DEADLINE)])
    data = batch([masked])

    assert data.minibatches == (Minibatch((0,), denominator=0.0),)
    assert data.statistics == MeanAndStd(mean=0.0, std=0.0)


def test_the_statistics_are_those_of_the_final_rewards():
    trees = [question("a", [10, 15], rewards=[1.0, 0.0]), question("b", [20], rewards=[2.0])]

    plain = batch(trees).statistics
    assert (plain.mean, plain.std) == (1.0, 1.0)
    # The slope goes from 10 to 20 tokens: the rewards become 1, -0.5 and 1.
    shaped = batch(trees, overlong_buffer_tokens=10, max_response_tokens=20).statistics
    assert (shaped.mean, shaped.std) == pytest.approx((0.5, np.sqrt(0.75)))


def test_entropies_are_summed_up_by_minibatch():
    trees = [
        make_tree([1], [make_trajectory("0", [make_turn([7] * n, entropy=entropy)])], str(entropy))
        for n, entropy in [(1, 1.0), (2, 2.5), (2, 0.3)]
    ]
    data = batch(trees, entropy_advantage_coeff=0.2)

    # 1, 2.5, 2.5: deviations -1, 0.5, 0.5 from the mean 2.
    first, last = [minibatch.entropies for minibatch in data.minibatches]
    assert (first.mean, first.std) == pytest.approx((2.0, np.sqrt(0.75)))
    assert last == MeanAndStd(mean=float(np.float32(0.3)), std=0.0)


def test_every_epoch_has_every_question_once_and_shuffles_by_seed():
    trees = [question(str(i), [1]) for i in range(5)]
    kept = batch(trees, num_epochs=2)
    assert [m.questions for m in kept.minibatches] == [(0, 1), (2, 3), (4,)] * 2

    shuffled = batch(trees, num_epochs=2, shuffle_batch_per_epoch=True, seed=3)
    orders = [[q for m in shuffled.minibatches[i : i + 3] for q in m.questions] for i in (0, 3)]
    assert [sorted(order) for order in orders] == [[0, 1, 2, 3, 4]] * 2
    assert orders[0] != orders[1]
    assert shuffled.minibatches == batch(trees, num_epochs=2, shuffle_batch_per_epoch=True, seed=3).minibatches
    assert shuffled.minibatches != batch(trees, num_epochs=2, shuffle_batch_per_epoch=True, seed=4).minibatches
