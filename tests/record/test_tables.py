"""The tables of a run: advantages as the update computes them, the settings, and who reads the files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.connectors import leaf_advantages
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.learner.training_data import QuestionBatch
from rllib_arpo.record import schema
from rllib_arpo.record.recorder import TreeRecorder, is_chosen
from rllib_arpo.record.tables import settings_of, training_table
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import QuestionRef, SampledQuestion
from tests.helpers.trees import paid, random_tree
from tests.record.trees import TREE

BASELINES = [
    {"baseline": "group", "overlong_buffer_tokens": 3, "max_response_tokens": 5},
    {"baseline": "tree", "leaf_weighting": "branch"},
    {"baseline": "same_state"},
    {"baseline": "batch", "loss_aggregation": "sequence_mean"},
]


def config(model: str = "none", **changes) -> ARPOConfig:
    made = ARPOConfig().language_model(model_name_or_path=model).debugging(seed=5).reporting(record_share=1.0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def sampled(tree, number: int = 0) -> SampledQuestion:
    return SampledQuestion(QuestionRef(number), TreeEpisode(tree))


@pytest.mark.parametrize("attribution", ["soft", "hard"])
@pytest.mark.parametrize("changes", BASELINES)
def test_the_advantages_are_those_of_the_update(model_folder, changes, attribution):
    made = config(model_folder, attribution=attribution, **changes)
    rng = np.random.default_rng(0)
    trees = [replace(random_tree(rng, max_forks=6, masked_probability=0.2), question_id=str(i)) for i in range(12)]
    questions = [sampled(tree, i) for i, tree in enumerate(trees)]
    episodes = [question.episode for question in questions]
    statistics = QuestionBatch.plan(episodes, made).statistics
    # A part of the batch has the advantages that it has in the whole batch.
    chosen = [(question, question.episode) for question in questions[3:9]]
    rows = {
        (row["question_id"], row["agent_id"], row["turn"]): row
        for row in training_table(1, chosen, made, statistics).to_pylist()
    }
    compared = 0
    for tree in trees[3:9]:
        computed = leaf_advantages(tree, made, statistics)
        layout, nodes = computed.layout, computed.attribution(attribution)
        for leaf, advantage in zip(layout.leaves, computed.advantages, strict=True):
            leaf_rows = [r for k, r in rows.items() if k[:2] == (tree.question_id, tree.trajectories[leaf].agent_id)]
            assert {row["advantage"] for row in leaf_rows} == {advantage}
        for node, positive, negative, weight in zip(layout.nodes, nodes.a_pos, nodes.a_neg, nodes.weight, strict=True):
            row = rows[tree.question_id, tree.trajectories[node.trajectory].agent_id, node.turn]
            assert (row["leaves"], row["weight"]) == (node.leaf_end - node.leaf_begin, weight)
            if attribution == "soft":
                assert (row["soft_positive"], row["soft_negative"]) == (positive, negative)
            else:
                assert row["hard_advantage"] * weight == pytest.approx(positive + negative, abs=1e-12)
            compared += 1
    assert compared > 20


def test_a_file_states_its_version_and_the_settings(model_folder):
    made = config(model_folder, branching="random", random_fork_probability=0.2, branch_width="wide", temperature=0.7)
    made.num_rollouts = np.int64(9)
    metadata = training_table(1, [(sampled(TREE), None)], made, None).schema.metadata
    assert metadata[schema.VERSION_KEY] == b"6"
    stated = json.loads(metadata[schema.SETTINGS_KEY])
    assert stated == settings_of(made)
    names = ("model_name_or_path", "branching", "branch_width", "temperature", "branch_threshold", "baseline", "seed")
    assert [stated[name] for name in names] == [model_folder, "random", "wide", 0.7, "auto", "group", 5]


def recorded(folder: Path, made: ARPOConfig, questions: list[SampledQuestion], episodes: list[TreeEpisode]) -> list:
    """The rows of an iteration in which these questions were asked, and the update got these episodes."""
    recorder = TreeRecorder(made, lambda: folder)
    recorder.training(1, questions, episodes, QuestionBatch.plan(episodes, made).statistics)
    recorder.evaluation(0, questions[:1])
    recorder.close()
    file = folder / "trees" / "iteration-00001.parquet"
    return pq.read_table(file).to_pylist() if file.exists() else []


def with_first_paid(tree: QuestionTree, reward: float) -> QuestionTree:
    """Of the tree, the first trajectory with another reward."""
    first = tree.trajectories[0]
    return replace(tree, trajectories=(replace(first, turns=paid(first.turns, reward)),))


def test_a_share_of_the_questions_is_chosen_by_their_names():
    names = [f"train/{i}" for i in range(2000)]
    chosen = {share: {name for name in names if is_chosen(name, share)} for share in (0.0, 0.1, 0.5, 1.0)}
    assert [len(chosen[share]) for share in (0.0, 1.0)] == [0, 2000]
    assert 150 < len(chosen[0.1]) < 250
    assert chosen[0.1] < chosen[0.5]


def test_a_question_that_the_update_does_not_get_is_recorded_without_advantages(model_folder, tmp_path):
    """A connector of the user drops the first question, and replaces the episode of the second."""
    made = config(model_folder)
    questions = [sampled(replace(TREE, question_id=name), i) for i, name in enumerate(("a", "b", "c"))]
    shaped = replace(with_first_paid(TREE, 4.75), question_id="b")
    rows = recorded(tmp_path, made, questions, [questions[2].episode, TreeEpisode(shaped)])
    assert {
        (row["question_id"], row["trained"], row["agent_id"], row["reward"]) for row in rows if row["turn"] == 0
    } == {
        ("a", False, "0", 1.0),
        ("a", False, "1", -1.0),
        ("a", False, "0.0", 0.25),
        ("b", True, "0", 5.0),
        ("c", True, "0", 1.0),
        ("c", True, "1", -1.0),
        ("c", True, "0.0", 0.25),
    }


def test_without_a_share_nothing_is_written(model_folder, tmp_path):
    question = sampled(TREE)
    assert recorded(tmp_path, config(model_folder, record_share=None), [question], [question.episode]) == []
    assert list(tmp_path.iterdir()) == []


def test_a_question_that_ended_the_run_is_written_at_once_whatever_the_share(model_folder, tmp_path):
    made = config(model_folder, record_share=None)
    questions = [sampled(replace(TREE, question_id=name), i) for i, name in enumerate(("a", "b"))]
    episodes = [question.episode for question in questions]
    statistics = QuestionBatch.plan(episodes, made).statistics
    recorder = TreeRecorder(made, lambda: tmp_path)
    path = recorder.failed(3, questions, episodes, statistics, ["b"])
    assert path == tmp_path / "trees" / "failed-00003.parquet"
    rows = pq.read_table(path).to_pylist()
    assert {(row["purpose"], row["iteration"], row["number"], row["question_id"]) for row in rows} == {
        ("failed", 3, 1, "b")
    }
    assert rows[0]["advantage"] > 0
