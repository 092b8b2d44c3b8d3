"""Alarms on the learner's metrics, and what the algorithm does with them."""

import logging

import numpy as np
import pytest

from rllib_arpo.learner.metrics import alarms
from rllib_arpo.learner.sharding import NonFiniteLossError
from rllib_arpo.record.read import questions, record_files
from tests.helpers.configs import small_config

HEALTHY = {"engine_logprob_gap": 0.03, "ratio_mean": 1.01, "entropy": 0.4, "grad_norm": 2.0}


@pytest.mark.parametrize(
    ("metrics", "limits", "found"),
    [
        (HEALTHY, {}, []),
        (HEALTHY | {"engine_logprob_gap": 0.11}, {}, ["engine_logprob_gap"]),
        (HEALTHY | {"ratio_mean": 0.79}, {}, ["ratio_mean"]),
        (HEALTHY | {"ratio_mean": 1.21, "entropy": 0.01}, {}, ["ratio_mean", "entropy"]),
        (HEALTHY | {"grad_norm": 101.0}, {}, ["grad_norm"]),
        (HEALTHY | {"grad_norm": 101.0}, {"grad_norm": None}, []),
        (HEALTHY, {"entropy": 0.5}, ["entropy"]),
        ({}, {}, []),
    ],
)
def test_limits(metrics, limits, found):
    assert list(alarms(metrics, limits)) == found


@pytest.fixture
def algorithm(ray_cluster, model_folder):
    algorithm = small_config(model_folder).training(guards={"entropy": 100.0}).build_algo()
    yield algorithm
    algorithm.stop()


def test_an_alarm_is_told_once_and_counted(algorithm, caplog):
    """The scripted engine invents its log-probs, so that the gap to the learner is large, too."""
    with caplog.at_level(logging.WARNING, "rllib_arpo"):
        results = [algorithm.train() for _ in range(2)]
    assert [r["learners"]["default_policy"]["num_alarms"] for r in results] == [2, 2]
    told = [record.message.partition(" is ")[0] for record in caplog.records if "(limit " in record.message]
    assert sorted(told) == ["engine_logprob_gap", "entropy"]


def test_questions_that_break_the_loss_are_kept(algorithm):
    sample_batch = algorithm._sample_batch

    def broken_batch():
        batch = sample_batch()
        for turn in batch[0].tree.turns():
            turn.log_probs[:] = np.nan
        return batch

    algorithm._sample_batch = broken_batch
    with pytest.raises(NonFiniteLossError) as raised:
        algorithm.training_step()
    [note] = raised.value.__notes__
    path = note.removeprefix("The questions are in ").removesuffix(".")
    (file,) = record_files(path)
    found = list(questions(file))
    # Both questions are in one pass.
    assert [question.tree.question_id for question in found] == raised.value.question_ids
    assert [len(question.tree.trajectories) for question in found] == [4, 4]
    log_probs = [question.tree.trajectories[0].turns[0].log_probs for question in found]
    assert [bool(np.isnan(values).all()) for values in log_probs] == [True, False]
