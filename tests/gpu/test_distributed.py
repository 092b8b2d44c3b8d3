"""Learners as ranks of NCCL (of gloo on a CPU), replicated and sharded by FSDP2, against a learner alone.

With one rank wherever there is a GPU, with two where there are two. More about gloo: tests/learner/test_ranks.py, and
with Ray tests/learner/test_num_learners.py.
"""

import pytest
import torch

from tests.helpers.dense_attention import relative_error
from tests.learner import plain
from tests.learner.builders import assert_same_gradient
from tests.learner.ranks import Ranks

#: Of all parameters together; both sides compute in fp32.
TOLERANCE = 1e-5


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_ranks_make_the_update_of_a_learner_alone(model_folder, sharding, num_ranks, sizes, figures):
    num_gpus = torch.cuda.device_count()
    if num_ranks > max(1, num_gpus):
        pytest.skip(f"needs {num_ranks} CUDA devices; there are {num_gpus}")
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(4)]
    backend, on_gpu = ("nccl", 1) if num_gpus else ("gloo", 0)
    expected = Ranks(num_gpus=on_gpu).gradients(model_folder, questions)
    gradients = Ranks(backend, sharding, num_ranks, on_gpu).gradients(model_folder, questions)
    flat, expected_flat = (torch.cat([one[name].flatten() for name in expected]) for one in (gradients, expected))
    error = relative_error(flat, expected_flat)
    figures.add(f"{backend}: relative error of the gradient", error, at_most=TOLERANCE)
    assert_same_gradient(gradients, expected)
