"""Connectors of users run on the driver, before it plans the update; ARPO refuses results that do not fit."""

import copy

import pytest
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo import ARPOConfig
from rllib_arpo.connectors.users import apply_user_connectors, user_connectors
from rllib_arpo.learner.training_data import QuestionBatch
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def episode(name: str, *rewards: float):
    """A question of root trajectories with these rewards; "0" has a fork "0.0" below its first turn."""
    trajectories = [
        make_trajectory(str(i), [make_turn([1, 2], [3]), make_turn([4])], reward=reward)
        for i, reward in enumerate(rewards)
    ]
    fork = make_trajectory("0.0", [make_turn([5])], num_inherited_turns=1)
    return TreeEpisode(make_tree([9], [*trajectories, fork], name))


class Piece(ConnectorV2):
    """Calls a function of the episodes."""

    def __init__(self, function):
        super().__init__(None, None)
        self.function = function

    def __call__(self, *, batch, episodes, **kwargs):
        return self.function(episodes) or batch


def plan(function, episodes) -> QuestionBatch:
    config = ARPOConfig().training(questions_per_batch=2, questions_per_minibatch=2)
    return QuestionBatch.plan(apply_user_connectors([Piece(function)], episodes), config)


def test_shaped_rewards_are_those_of_the_statistics():
    def shape(episodes):
        for one in episodes:
            one.agent_episodes["1"].rewards[-1] = 5.0

    def shape_a_copy(episodes):
        episodes[:] = map(copy.deepcopy, episodes)
        shape(episodes)

    question = episode("a", 1.0, 0.0)
    assert plan(lambda _: None, [question]).statistics.mean == pytest.approx(1 / 3)
    assert plan(shape_a_copy, [question]).statistics.mean == pytest.approx((1.0 + 5.0 + 0.0) / 3)
    assert question.tree.return_of("1") == 0.0
    assert plan(shape, [question]).statistics.mean == pytest.approx((1.0 + 5.0 + 0.0) / 3)


def remake(episodes):
    episodes[0] = MultiAgentEpisode.from_state(episodes[0].get_state())


@pytest.mark.parametrize(("function", "sentence"), [
    (lambda episodes: episodes.clear(), r"Piece left no episode to train on\.$"),
    # Further sentences of this kind: `tests/rollout/test_episodes.py`.
    (lambda episodes: episodes[0].agent_episodes.clear(), r"Piece left question 'a' without a trajectory\.$"),
    (lambda episodes: None.get_initial_state(),
     r"Piece raised AttributeError: .* \(it runs on the driver, with rl_module=None\)\.$"),
    (remake, r"Piece made a MultiAgentEpisode: change ARPO's episodes"),
    (lambda _: {"advantages": 1}, r"Piece writes \['advantages'\] into the batch"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(function, sentence):
    with pytest.raises(ValueError, match=f"^learner_connector: {sentence}"):
        plan(function, [episode("a", 1.0, 0.0)])


def test_the_pieces_are_made_as_rllib_makes_them():
    piece = Piece(lambda _: None)
    for made in (piece, [piece]):
        assert user_connectors(lambda *spaces, made=made: made, None, None) == [piece]


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda *spaces: None, "^learner_connector must return a ConnectorV2 or a list of them, not None"),
    (lambda *spaces: ["a name"], "^learner_connector must return a ConnectorV2 or a list of them, not \\['a name'"),
    (lambda *spaces: {}["shape"], r"^learner_connector, called with two spaces, raised KeyError: 'shape'\.$"),
])  # fmt: skip
def test_a_learner_connector_that_makes_something_else_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        user_connectors(ARPOConfig().learners(learner_connector=make)._learner_connector, None, None)
