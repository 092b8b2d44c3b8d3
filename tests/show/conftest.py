"""Records on the disk, and a browser."""

from dataclasses import replace
from pathlib import Path

import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.record.recorder import TreeRecorder
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import Purpose, QuestionRef, SampledQuestion
from tests.record.trees import TREE


def sampled(tree: QuestionTree, number: int, purpose: Purpose) -> SampledQuestion:
    return SampledQuestion(QuestionRef(number, purpose), TreeEpisode(tree), seconds=2.5)


def write_record(folder: Path, model: str, trees: list[QuestionTree]) -> None:
    """Two evaluations and an iteration of these questions, in `folder`/trees."""
    config = ARPOConfig().language_model(model_name_or_path=model).reporting(record_share=1.0)
    config.adaptive_rollout(num_rollouts=5, num_initial_rollouts=2)
    config.evaluation(evaluation_config={"explore": True, "branching": "threshold"})
    recorder = TreeRecorder(config, lambda: folder)
    held_out = [sampled(tree, i, Purpose.EVALUATION) for i, tree in enumerate(trees)]
    recorder.evaluation(0, held_out)
    asked = [sampled(tree, i, Purpose.TRAINING) for i, tree in enumerate(trees)]
    recorder.training(1, asked, [question.episode for question in asked], None)
    recorder.evaluation(3, held_out)
    recorder.close()


@pytest.fixture(scope="session")
def record(tmp_path_factory, model_folder) -> Path:
    """The folder of a run with the questions "lamps" and "lamps & <b>cups</b>/2"."""
    folder = tmp_path_factory.mktemp("run")
    write_record(folder, model_folder, [TREE, replace(TREE, question_id="lamps & <b>cups</b>/2")])
    return folder
