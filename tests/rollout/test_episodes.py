"""A tree as RLlib's `MultiAgentEpisode`: what users see, and what they change."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from rllib_arpo.core.tree import StopReason, TurnTimes
from rllib_arpo.envs.errors import ContractError
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.helpers.trees import assert_same, make_trajectory, make_tree, make_turn, random_tree

FORKED = make_tree(
    [1, 2],
    [
        make_trajectory("0", [make_turn([3], [4], reward=0.5, times=TurnTimes(0.5, 1.0, 2.5)), make_turn([5])], 1.0),
        make_trajectory("1", [make_turn([6, 7])], -1.0, stop_reason=StopReason.MALFORMED_CALL),
        make_trajectory("0.0", [make_turn([8, 9])], 1.0, num_inherited_turns=1),
        make_trajectory("2", [], stop_reason=StopReason.TOKEN_LIMIT),
    ],
)


@pytest.mark.parametrize("seed", range(25))
def test_the_tree_stays_as_it_was_though_somebody_looks_at_its_agents(seed):
    shape = {"vocab_size": 50, "paid_turn_probability": 0.5, "new_context_probability": 0.3}
    tree = random_tree(np.random.default_rng(seed), **shape)
    episode = TreeEpisode(tree)
    assert episode.id_ == tree.question_id
    assert {agent: len(e) for agent, e in episode.agent_episodes.items()} == {
        t.agent_id: len(t.turns) for t in tree.trajectories
    }
    assert episode.env_steps() == max(t.num_path_turns for t in tree.trajectories)
    assert episode.is_done
    episode.take_edits("nobody")
    assert_same(episode.tree, tree)


def test_what_an_agent_shows_of_a_trajectory():
    root = TreeEpisode(FORKED).agent_episodes["0"]
    assert [tokens.tolist() for tokens in root.actions] == [[3], [5]]
    assert [tokens.tolist() for tokens in root.observations] == [[1, 2], [4], []]
    assert list(root.rewards) == [0.5, 1.0]
    outputs = {name: [values.tolist() for values in column] for name, column in root.extra_model_outputs.items()}
    assert outputs == {"action_logp": [[-1.0]] * 2, "entropies": [[1.0]] * 2, "weight_versions": [[0]] * 2}


def test_first_observation_of_a_fork_is_its_whole_prefix():
    fork = TreeEpisode(FORKED).agent_episodes["0.0"]
    assert fork.observations[0].tolist() == [1, 2, 3, 4]
    assert fork.infos[0] == {"parent": "0", "inherited_turns": 1}
    assert fork.actions[0].tolist() == [8, 9]


def test_nobody_makes_agents_for_the_tree_or_for_a_journey(monkeypatch):
    monkeypatch.setattr(TreeEpisode, "add_env_reset", lambda *_, **__: pytest.fail("agents were made"))
    episode = TreeEpisode(FORKED)
    episode.take_edits("nobody")
    assert len(episode) == 2
    for copied in (pickle.loads(pickle.dumps(episode)), copy.deepcopy(episode)):
        assert_same(copied.tree, FORKED)
        assert copied.id_ == "q"
    with pytest.raises(AttributeError, match="does not have the attribute 'no_such_name'"):
        _ = episode.no_such_name


def test_changes_of_a_user_are_in_the_tree():
    """A reward, a dropped trajectory, a token; "1" is as it was."""
    episode = TreeEpisode(FORKED)
    episode.agent_episodes["0"].rewards[-1] = np.float32(0.25)
    episode.agent_episodes["0.0"].actions[0] = np.array([8, 5])
    del episode.agent_episodes["2"]
    episode.take_edits("A callback")
    root, one, fork = episode.tree.trajectories
    assert [turn.reward for turn in root.turns] == [0.5, 0.25]
    assert fork.turns[0].token_ids.tolist() == [8, 5]
    assert_same(replace(FORKED, trajectories=(one,)), replace(FORKED, trajectories=FORKED.trajectories[1:2]))
    # What later ones change is seen as well.
    episode.agent_episodes["0"].rewards[-1] = 4.0
    episode.take_edits("A callback")
    assert episode.tree.return_of("0") == 4.5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda episode: pickle.loads(pickle.dumps(episode))])
def test_a_copy_has_the_changes_and_the_custom_data(copied):
    episode = TreeEpisode(FORKED)
    episode.agent_episodes["0"].rewards[-1] = 4.0
    episode.custom_data["seen"] = 3
    other = copied(episode)
    other.agent_episodes["1"].rewards[-1] = 7.0
    other.take_edits("A callback")
    assert (other.tree.returns().tolist(), other.custom_data) == ([4.5, 7.0, 1.5, 0.0], {"seen": 3})
    assert episode.tree.return_of("1") == -1.0


def cut(agents):
    agents["0"] = agents["0"][:1]


def add(agents):
    agents["7"] = agents["1"]


def spoil(agents):
    agents["1"].rewards[0] = None


def shorten(agents):
    agents["1"].actions[0] = agents["1"].actions[0][:-1]


def ask_otherwise(agents):
    agents["0"].observations[0] = [9, 9]


@pytest.mark.parametrize(("change", "sentence"), [
    (dict.clear, "Mine left question 'q' without a trajectory."),
    (lambda agents: agents.pop("0"), "Mine dropped trajectory '0' of question 'q', from which '0.0' descends."),
    (cut, "Mine left trajectory '0' of question 'q' with other turns than were sampled."),
    (add, "Mine left trajectory '7' of question 'q' with other turns than were sampled."),
    (spoil, "Mine left a reward of question 'q', trajectory 1, that must be a finite number, not None."),
    (ask_otherwise, "Mine left trajectory '0' of question 'q' with another prompt."),
    (shorten, "Mine left trajectory '1' of question 'q' with unequally many tokens, log-probs and weight versions."),
])  # fmt: skip
def test_changes_that_do_not_fit_are_refused(change, sentence):
    episode = TreeEpisode(FORKED)
    change(episode.agent_episodes)
    with pytest.raises(ContractError) as raised:
        episode.take_edits("Mine")
    assert str(raised.value) == sentence
