"""The metrics of nodes in RLlib's result: those of the rollout, and those that a callback adds on the driver."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from rllib_arpo.envs.tasks.trails import shows_a_choice
from rllib_arpo.rollout.episodes import episode_to_tree
from tuned_examples.decisive_steps import DecisiveSteps


@pytest.fixture
def trained(scripted):
    """An algorithm and its result after one iteration, of trajectories that call tools and are forked."""
    config = scripted.adaptive_rollout(num_rollouts=8, num_initial_rollouts=4).callbacks(DecisiveSteps)
    config.language_model(
        engine_kwargs={"vocab_size": 256, "seed": 5, "replies": [[7, 1], [8, 9, 1], [9, 1], [7, 2], [8, 8, 2]]}
    )
    algorithm = config.build_algo()
    yield algorithm, algorithm.train()
    algorithm.stop()


def test_the_metrics_of_nodes_have_the_documented_names(trained):
    rollout = trained[1]["env_runners"]
    assert {"fork_rate", "fork_depth_mean", "fork_depth_p10", "fork_depth_p90"} <= rollout.keys()
    assert rollout["entropy"].keys() == {
        "initial", "after_tool", "delta", "delta_p10", "delta_p50", "delta_p90", "rise_share",
    }  # fmt: skip


def test_the_decisive_steps_are_those_of_the_questions_that_were_sampled_last(trained):
    """Recomputed from the trees: the means over the questions of the share of nodes on policy with dH > 0."""
    algorithm, result = trained
    decode = AutoTokenizer.from_pretrained(algorithm.config.model_name_or_path).decode
    shares: dict[bool, list[float]] = {True: [], False: []}
    assert len(algorithm.last_sampled) == 2
    for sampled in algorithm.last_sampled:
        rises: dict[bool, list[bool]] = {True: [], False: []}
        for trajectory in episode_to_tree(sampled.episode).trajectories:
            if trajectory.parent is None:
                for above, turn in zip(trajectory.turns, trajectory.turns[1:], strict=False):
                    rises[shows_a_choice(decode(above.observation))].append(turn.decision.delta > 0)
        for kind, found in rises.items():
            shares[kind] += [np.mean(found)] if found else []
    names = {True: "decisive", False: "other"}
    assert any(shares.values())
    for kind, found in shares.items():
        if found:
            assert result["env_runners"][names[kind]]["rise_share"] == pytest.approx(np.mean(found))
        else:
            assert "rise_share" not in result["env_runners"].get(names[kind], {})
