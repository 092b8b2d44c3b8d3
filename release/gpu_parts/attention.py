"""Each kernel of tree attention: gradients against dense attention in fp64, and speed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from release.benchmarks.common.bench import median, rounded, timed
from release.benchmarks.learner.rollouts import make_rollouts
from release.benchmarks.learner.sides import synchronized
from release.benchmarks.learner.tree_workload import make_question
from release.gpu_parts.report import NotRunError, Report
from release.gpu_parts.sizes import Sizes
from rllib_arpo.core.packing import concatenate
from rllib_arpo.policy.attention.tree import TREE_KERNELS, attention_dtype, choose_kernel, plan_tree
from tests.helpers.dense_attention import kernel_errors

#: Largest relative error of output and gradients, by the type in which attention is computed.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
#: Of the timed tree.
SHARING = 2.5
#: Unique tokens of each of its questions.
QUESTION_TOKENS = 2048


def run(sizes: Sizes, report: Report, work: Path) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = attention_dtype(torch.bfloat16, device.type)
    end = _timed_tree(sizes.attention_tokens)
    for kernel in TREE_KERNELS:
        with report.attempt(kernel):
            _check_runs(kernel, dtype, device)
            heads = (sizes.large.num_heads, sizes.large.num_key_value_heads, sizes.large.head_dim)
            errors = kernel_errors(kernel, dtype, device.type, heads)
            names = ("output", "query", "key", "value")
            detail = dict(zip(names, errors, strict=True)) | {"dtype": str(dtype)}
            report.add(f"{kernel}: relative error of gradients", max(errors), at_most=TOLERANCES[dtype], detail=detail)
            _time(kernel, end.to(device), dtype, sizes, report)


def _check_runs(kernel: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raises NotRunError: the kernel needs another device, or a compiler."""
    try:
        choose_kernel(kernel, dtype, device.type)
    except ValueError as reason:
        raise NotRunError(str(reason)) from reason


def _timed_tree(num_tokens: int) -> torch.Tensor:
    """`end` of questions side by side."""
    per_question = min(num_tokens, QUESTION_TOKENS)
    questions = [make_question(SHARING, per_question, seed) for seed in range(num_tokens // per_question)]
    return torch.from_numpy(concatenate(make_rollouts(questions).trees).end.astype(np.int64))


def _time(kernel: str, end: torch.Tensor, dtype: torch.dtype, sizes: Sizes, report: Report) -> None:
    """Forward and backward of one layer's attention; FLOPs are those of the pairs that attend, 12 head_dim each."""
    shape = sizes.large
    plan = plan_tree(end, dtype, kernel)

    def draw(number: int) -> torch.Tensor:
        return torch.randn(1, number, len(end), shape.head_dim, device=end.device, dtype=dtype)

    groups = shape.num_key_value_heads
    inputs = [draw(number).requires_grad_() for number in (shape.num_heads, groups, groups)]
    grad = draw(shape.num_heads)

    def forward_and_backward() -> None:
        torch.autograd.grad(plan.attend(*inputs, None), inputs, grad)

    step = synchronized(forward_and_backward, end.device)
    seconds = [timed(step)[0] for _ in range(sizes.repeats + 1)][1:]
    pairs = int((end - torch.arange(len(end), device=end.device)).sum())
    flops = 12 * shape.num_heads * shape.head_dim * pairs
    detail = {"tflops_per_s": round(flops / median(seconds) / 1e12, 4), "seconds": rounded(seconds, 6)}
    name = f"{kernel}: forward and backward of {len(end):,} tokens"
    report.add(name, 1000 * median(seconds), "ms", detail=detail)
