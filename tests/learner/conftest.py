"""Questions to train on, and the fixtures of tests about the model."""

import pytest

from rllib_arpo.core.tree import QuestionTree
from tests.helpers.model_fixtures import a_block_per_chain, compiler, float64_casts, random_pass, tiny_folder
from tests.helpers.models import tiny_model
from tests.learner import plain

__all__ = ["a_block_per_chain", "compiler", "float64_casts", "random_pass", "tiny_folder"]


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"), num_layers=1)


@pytest.fixture(scope="session")
def questions() -> list[QuestionTree]:
    """Five questions with nested forks, masked trajectories and rewards of both signs."""
    return [plain.random_question(seed, f"q{seed}", masked_probability=0.1) for seed in range(5)]
