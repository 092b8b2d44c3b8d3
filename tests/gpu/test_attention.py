"""The kernels of tree attention: against dense attention in fp64, and each through a whole model."""

import pytest
import torch

from rllib_arpo.core.columns import ENTROPY, LOG_PROBS
from rllib_arpo.policy.attention.tree import choose_kernel
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from tests.gpu.workbench import DEVICE
from tests.helpers.dense_attention import kernel_errors, relative_error

#: Largest relative error of output and gradients. On an H100 the gradients of torch's fp32 attention were off by 3.4e-4
#: (TF32 has such errors), its output by 4e-7.
TOLERANCES = [
    ("path_gather", torch.float32, 1e-3),
    ("path_gather", torch.bfloat16, 2e-2),
    ("varlen", torch.bfloat16, 2e-2),
    ("varlen", torch.float16, 5e-3),
]
#: Of the tree that is timed: sum of the trajectories' lengths / unique tokens, and unique tokens of a question.
SHARING, QUESTION_TOKENS = 2.5, 2048


def skip_unless_it_runs(kernel: str, dtype: torch.dtype) -> None:
    try:
        choose_kernel(kernel, dtype, DEVICE)
    except ValueError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), TOLERANCES)
def test_a_kernel_equals_dense_attention(kernel, dtype, tolerance, sizes, figures):
    skip_unless_it_runs(kernel, dtype)
    for heads in ((9, 3, 64), sizes.large.heads):
        errors = kernel_errors(kernel, dtype, DEVICE, heads)
        parts = dict(zip(("output", "query", "key", "value"), errors, strict=True))
        figures.add(f"relative error, heads {heads}", max(errors), at_most=tolerance, detail=parts)


def log_probs_and_gradient(columns, folder: str, device: str, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    module = LLMRLModule(model_config={"model_name_or_path": folder, "temperature": 0.7, **settings}).to(device)
    out = module.forward_train(columns)
    (out[LOG_PROBS].sum() + out[ENTROPY].sum()).backward()
    return out[LOG_PROBS].detach().cpu(), torch.cat([p.grad.flatten().cpu() for p in module.causal_lm.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("kernel", "dtype", "gap", "tolerance"), [("path_gather", "float32", 1e-2, 1e-2), ("auto", "bfloat16", 0.5, 0.1)]
)
def test_a_model_on_the_gpu_equals_it_on_the_cpu(
    model_folder, random_pass, kernel, dtype, gap, tolerance, checkpointing
):
    columns = random_pass(0)
    expected, expected_gradient = log_probs_and_gradient(columns, model_folder, "cpu", dtype="float32")
    settings = {"dtype": dtype, "tree_attention": kernel, "gradient_checkpointing": checkpointing}
    log_probs, gradient = log_probs_and_gradient(columns, model_folder, "cuda", **settings)
    assert (log_probs - expected).abs().max() < gap
    assert relative_error(gradient, expected_gradient) < tolerance
