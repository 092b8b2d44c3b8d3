"""Learners as ranks of NCCL, replicated and sharded by FSDP2: their gradients are those of a learner alone.

With one rank wherever there is a GPU, with two where there are two. The same on gloo: tests/learner/test_ranks.py, and
with Ray tests/learner/test_num_learners.py.
"""

from __future__ import annotations

import pytest
import torch

from tests.learner import plain
from tests.learner.builders import assert_same_gradient
from tests.learner.ranks import Ranks


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_ranks_of_nccl_make_the_update_of_a_learner_alone(model_folder, sharding, num_ranks):
    if torch.cuda.device_count() < num_ranks:
        pytest.skip(f"needs {num_ranks} CUDA devices; there are {torch.cuda.device_count()}")
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(4)]
    expected = Ranks(num_gpus=1).gradients(model_folder, questions)
    assert_same_gradient(Ranks("nccl", sharding, num_ranks, num_gpus=1).gradients(model_folder, questions), expected)
