"""A learner that is the only rank of a process group makes the update of one without; NCCL: tests/gpu."""

import pytest

from tests.learner import plain
from tests.learner.builders import assert_same_gradient
from tests.learner.ranks import Ranks


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_one_rank_makes_the_update_of_a_learner_alone(model_folder, sharding):
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(3)]
    expected = Ranks().gradients(model_folder, questions)
    assert_same_gradient(Ranks("gloo", sharding).gradients(model_folder, questions), expected)
