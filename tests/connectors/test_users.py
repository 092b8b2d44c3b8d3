"""Connectors of users run on the driver, before it plans the update; ARPO refuses results that do not fit."""

import copy

import pytest
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo import ARPOConfig
from rllib_arpo.connectors.users import apply_user_connectors, user_connectors
from rllib_arpo.learner.training_data import PlanSettings, QuestionBatch
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
    return QuestionBatch.plan(apply_user_connectors([Piece(function)], episodes), PlanSettings.from_config(config))


def test_a_dropped_question_leaves_the_plan_of_the_others():
    left, dropped = episode("a", 1.0, 0.0), episode("b", 1.0, 1.0)
    batch = plan(lambda episodes: episodes.remove(dropped), [left, dropped])
    assert batch.episodes == [left]
    whole = plan(lambda episodes: None, [left])
    assert batch.minibatches == whole.minibatches
    assert batch.statistics == whole.statistics


def test_another_order_is_planned_in_that_order():
    first, second = episode("a", 1.0, 0.0), episode("b", 1.0, 1.0, 0.0)
    batch = plan(lambda episodes: episodes.reverse(), [first, second])
    assert batch.episodes == [second, first]
    assert batch.num_tokens == tuple(reversed(plan(lambda _: None, [first, second]).num_tokens))


def test_shaped_rewards_are_those_of_the_statistics():
    def shape(episodes):
        for one in episodes:
            one.agent_episodes["1"].rewards[-1] = 5.0

    [question] = [episode("a", 1.0, 0.0)]
    assert plan(lambda _: None, [question]).statistics.mean == pytest.approx(1 / 3)
    assert plan(shape, [question]).statistics.mean == pytest.approx((1.0 + 5.0 + 0.0) / 3)


def test_a_copy_may_replace_its_original():
    def replaced(episodes):
        episodes[:] = map(copy.deepcopy, episodes)
        shape(episodes)

    def shape(episodes):
        episodes[0].agent_episodes["1"].rewards[-1] = 5.0

    question = episode("a", 1.0, 0.0)
    assert plan(replaced, [question]).statistics.mean == pytest.approx((1.0 + 5.0 + 0.0) / 3)
    assert question.tree.return_of("1") == 0.0


def test_a_dropped_trajectory_is_neither_in_the_denominator_nor_in_the_statistics():
    def drop(episodes):
        del episodes[0].agent_episodes["1"]

    batch = plan(drop, [episode("a", 1.0, 7.0)])
    assert batch.statistics.mean == pytest.approx(0.5)
    assert batch.minibatches == plan(lambda _: None, [episode("a", 1.0)]).minibatches


def test_what_does_not_fit_is_refused():
    def orphan(episodes):
        del episodes[0].agent_episodes["0"]

    with pytest.raises(ValueError, match=r"^learner_connector: Piece dropped trajectory '0' of question 'a'"):
        plan(orphan, [episode("a", 1.0, 0.0)])
    with pytest.raises(ValueError, match=r"^learner_connector: Piece left no episode to train on\.$"):
        plan(lambda episodes: episodes.clear(), [episode("a", 1.0, 0.0)])
    with pytest.raises(ValueError, match=r"^learner_connector: Piece left question 'a' without a trajectory\.$"):
        plan(lambda episodes: episodes[0].agent_episodes.clear(), [episode("a", 1.0, 0.0)])
    needs_module = (
        r"^learner_connector: Piece raised AttributeError: .* \(it runs on the driver, with rl_module=None\)\.$"
    )
    with pytest.raises(ValueError, match=needs_module):
        plan(lambda episodes: None.get_initial_state(), [episode("a", 1.0, 0.0)])

    def spoil(episodes):
        episodes[0].agent_episodes["1"].rewards[-1] = float("nan")

    spoilt = r"^learner_connector: Piece left a reward of question 'a', trajectory 1, that must be a finite"
    with pytest.raises(ValueError, match=spoilt):
        plan(spoil, [episode("a", 1.0, 0.0)])

    def remake(episodes):
        episodes[0] = MultiAgentEpisode.from_state(episodes[0].get_state())

    with pytest.raises(ValueError, match=r"^learner_connector: Piece made a MultiAgentEpisode: change ARPO's episodes"):
        plan(remake, [episode("a", 1.0, 0.0)])
    with pytest.raises(ValueError, match=r"^learner_connector: Piece writes \['advantages'\] into the batch"):
        plan(lambda _: {"advantages": 1}, [episode("a", 1.0, 0.0)])


@pytest.mark.parametrize("as_list", [False, True])
def test_the_pieces_are_made_as_rllib_makes_them(as_list):
    piece = Piece(lambda _: None)
    config = ARPOConfig().learners(learner_connector=lambda *spaces: [piece] if as_list else piece)
    assert user_connectors(config._learner_connector, None, None) == [piece]


@pytest.mark.parametrize("made", [None, ["a name"]])
def test_a_learner_connector_that_makes_something_else_is_refused(made):
    config = ARPOConfig().learners(learner_connector=lambda *spaces: made)
    with pytest.raises(ValueError, match="learner_connector must return a ConnectorV2 or a list of them, not "):
        user_connectors(config._learner_connector, None, None)


def test_a_learner_connector_that_raises_is_named():
    with pytest.raises(ValueError, match=r"^learner_connector, called with two spaces, raised KeyError: 'shape'\.$"):
        user_connectors(lambda observations, actions: {}["shape"], None, None)
