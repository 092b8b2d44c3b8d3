"""Learners as ranks of NCCL (of gloo on a CPU), replicated and sharded: their gradients against a learner alone."""

from __future__ import annotations

from pathlib import Path

import torch

from release.benchmarks.learner.tree_speedup import relative_error
from release.gpu_parts.report import NotRunError, Report
from release.gpu_parts.sizes import Sizes
from tests.helpers.models import tiny_model
from tests.learner import plain
from tests.learner.ranks import Ranks

#: Of all parameters together; both sides compute in fp32.
TOLERANCE = 1e-5
SHARDINGS = {"none": "replicas", "fsdp2": "FSDP2"}


def run(sizes: Sizes, report: Report, work: Path) -> None:
    num_gpus = int(torch.cuda.is_available())
    backend = "nccl" if num_gpus else "gloo"
    model = tiny_model(work / "models" / "tiny-llama")
    questions = [plain.random_question(seed, f"q{seed}") for seed in range(4)]
    expected = Ranks(num_gpus=num_gpus).gradients(model, questions)
    for num_ranks in (1, 2):
        for sharding, name in SHARDINGS.items():
            ranks = Ranks(backend, sharding, num_ranks, num_gpus)
            title = f"{backend}, {num_ranks} rank{'s' * (num_ranks > 1)}, {name}"
            with report.attempt(title):
                if num_ranks > max(1, torch.cuda.device_count()):
                    raise NotRunError(f"needs {num_ranks} CUDA devices, and there are {torch.cuda.device_count()}")
                error = relative_error(ranks.gradients(model, questions), expected)
                report.add(f"{title}: relative error of the gradient", error, at_most=TOLERANCE)
