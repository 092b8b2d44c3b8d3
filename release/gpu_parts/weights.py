"""Seconds in which an engine gets new weights of a 0.5B model, and proves that it has them, by each transport."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from release.benchmarks.common.bench import median, rounded, timed
from release.gpu_parts.algorithm import make_config, ray_running
from release.gpu_parts.models import random_qwen2
from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes
from rllib_arpo.weights import make_weight_sync

if TYPE_CHECKING:
    from rllib_arpo.arpo import ARPO
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
    from rllib_arpo.weights import WeightSync

TARGET_S = 1.0
#: GPUs -> the part of one that the learner and the engine have.
GPU_SHARES = {0: 0.0, 1: 0.5, 2: 1.0}


def run(sizes: Sizes, report: Report, work: Path) -> None:
    num_gpus, folder = torch.cuda.device_count(), random_qwen2(sizes.small, work)
    with ray_running():
        if num_gpus:
            _measure(("ipc", "in_process_reload"), 1, folder, sizes, report)
        else:
            report.skip("weights by ipc", "needs a CUDA device")
            _measure(("in_process_reload",), 0, folder, sizes, report)
        if num_gpus > 1:
            _measure(("nccl",), 2, folder, sizes, report)
        else:
            report.skip("weights by nccl", f"needs two CUDA devices, and there are {num_gpus}")


def _measure(transports: tuple[str, ...], num_gpus: int, folder: str, sizes: Sizes, report: Report) -> None:
    """Learner and engine in a process each, on a GPU they share or on two; on a CPU both are in this process.

    Args:
        transports: values of `weight_sync`; the engine is built for the first, and the others work with any engine.
    """
    config = make_config(folder, sizes).language_model(weight_sync=transports[0])
    remote, share = int(num_gpus > 0), GPU_SHARES[num_gpus]
    config.env_runners(num_env_runners=remote, num_gpus_per_env_runner=share)
    config.learners(num_learners=remote, num_gpus_per_learner=share)
    with report.attempt(f"weights by {transports[0]}"):
        algorithm = config.build_algo()
        try:
            for transport in transports:
                sync = make_weight_sync(transport, algorithm.learner_group)
                seconds = [_push(algorithm, sync) for _ in range(sizes.repeats + 1)][1:]
                detail = {"seconds": rounded(seconds), "processes": 1 + 2 * remote, "gpus": num_gpus}
                name = f"weights by {transport}"
                report.add(name, median(seconds), "s", at_most=TARGET_S, is_speed=True, detail=detail)
        finally:
            algorithm.stop()


def _push(algorithm: ARPO, sync: WeightSync) -> float:
    algorithm.learner_group.foreach_learner(_name_anew)
    return timed(sync.push, algorithm.env_runner_group)[0]


def _name_anew(learner: ARPOTorchLearner, **_kwargs: object) -> None:
    """Makes the weights count as new ones."""
    learner._weight_version += 1
