"""The plan of an update."""

import numpy as np
import pytest

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.learner.training_data import QuestionBatch
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.helpers.trees import make_trajectory, make_tree, make_turn, paid


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


def test_the_statistics_are_those_of_the_final_rewards():
    trees = [question("a", [10, 15], rewards=[1.0, 0.0]), question("b", [20], rewards=[2.0])]

    plain = batch(trees).statistics
    assert (plain.mean, plain.std) == (1.0, 1.0)
    # The slope goes from 10 to 20 tokens: the rewards become 1, -0.5 and 1.
    shaped = batch(trees, overlong_buffer_tokens=10, max_response_tokens=20).statistics
    assert (shaped.mean, shaped.std) == pytest.approx((0.5, np.sqrt(0.75)))


def test_every_epoch_has_every_question_once_and_shuffles_by_seed():
    trees = [question(str(i), [1]) for i in range(5)]
    kept = batch(trees, num_epochs=2)
    assert [m.questions for m in kept.minibatches] == [(0, 1), (2, 3), (4,)] * 2
    # DAPO may keep fewer questions than a batch: no step has only the few that are left over.
    sizes = {n: [len(m.questions) for m in batch(n * trees, questions_per_minibatch=4).minibatches] for n in (1, 2, 4)}
    assert sizes == {1: [3, 2], 2: [4, 3, 3], 4: [4, 4, 4, 4, 4]}

    shuffled = batch(trees, num_epochs=2, shuffle_batch_per_epoch=True, seed=3)
    orders = [[q for m in shuffled.minibatches[i : i + 3] for q in m.questions] for i in (0, 3)]
    assert [sorted(order) for order in orders] == [[0, 1, 2, 3, 4]] * 2
    assert orders[0] != orders[1]
    assert shuffled.minibatches == batch(trees, num_epochs=2, shuffle_batch_per_epoch=True, seed=3).minibatches
    assert shuffled.minibatches != batch(trees, num_epochs=2, shuffle_batch_per_epoch=True, seed=4).minibatches


#: Two attempts with the return 1; one is paid for its first turn, the other for its last one.
EARLY_AND_LATE = make_tree(
    [1],
    [
        make_trajectory("0", [*paid([make_turn([2], [3])], 1.0), make_turn([4])]),
        make_trajectory("1", [make_turn([2], [3]), make_turn([4])], reward=1.0),
    ],
)


@pytest.mark.parametrize(("trees", "settings", "has_signal"), [
    ([question("a", [1, 1], [0.0, 1.0])], {}, True),
    ([question("a", [1, 1], [1.0, 1.0]), question("b", [1], [0.0])], {}, False),
    ([question("a", [1, 1], [1.0, 1.0]), question("b", [1], [0.0])], {"baseline": "batch"}, True),
    ([EARLY_AND_LATE], {}, False),
    ([EARLY_AND_LATE], {"returns": "to_go"}, True),
    ([EARLY_AND_LATE], {"baseline": "same_state"}, True),
    ([question("a", [1, 1], [1.0, 1.0])], {"returns": "to_go"}, False),
    ([question("a", [1, 1], [1.0, 1.0])], {"baseline": "my:credit"}, True),
])  # fmt: skip
def test_an_update_has_a_signal_if_an_advantage_may_differ_from_0(trees, settings, has_signal):
    assert batch(trees, **settings).has_signal == has_signal
