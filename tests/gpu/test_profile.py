"""Whole updates of a 1.5B model in bf16: tokens/s, MFU, memory, and where the seconds go."""

from collections import Counter

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from release.benchmarks.common.bench import median, rounded, timed
from release.benchmarks.learner.rollouts import make_rollouts
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.learner.training_data import QuestionBatch
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.gpu.flops import model_flops
from tests.gpu.workbench import DEVICE, SIZES

MFU = 0.35
#: Tokens of a pass, sharing (`Sizes.sharing`), gradient checkpointing. The first is to reach `MFU`.
UPDATES = [
    (SIZES.tokens_per_pass[0], 2.5, False),
    (SIZES.tokens_per_pass[0], 5.0, False),
    (SIZES.tokens_per_pass[-1], 2.5, True),
    (SIZES.tokens_per_pass[0], 2.5, True),
]


@pytest.fixture(scope="module")
def peak(sizes) -> float:
    return max(sizes.peaks().values())


@pytest.mark.parametrize("update", dict.fromkeys(UPDATES), ids="{0[0]} tokens a pass, R {0[1]}, {0[2]}".format)
def test_whole_updates(update, learner, peak, sizes, figures):
    """Connectors, passes, one step of Adam; model FLOPs over the machine's peak is the ideal."""
    tokens_per_pass, sharing, checkpointing = update
    questions, module = sizes.update_trees(sharing), learner.module[DEFAULT_MODULE_ID]
    learner.config.training(max_tokens_per_pass=tokens_per_pass)
    batch = QuestionBatch.plan([TreeEpisode(tree) for tree in questions], learner.config)
    if checkpointing:
        module.checkpoint_layers()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds = [timed(learner.update, batch)[0] for _ in range(sizes.repeats + 1)][1:]
        kernels = seconds_of_kernels(learner, batch)
    finally:
        module.causal_lm.gradient_checkpointing_disable()
    update_s, rollouts = median(seconds), make_rollouts(questions)
    tokens, ideal_s = rollouts.sizes(), model_flops(module.causal_lm, rollouts.trees) / peak
    figures.add("an update", update_s, "s", detail={"seconds": rounded(seconds), "ideal_s": ideal_s, **tokens})
    figures.add("unique tokens", tokens["unique_tokens"] / update_s, "tokens/s")
    figures.add("MFU", ideal_s / update_s, at_least=MFU if update == UPDATES[0] else None, is_speed=True)
    figures.add("in kernels", kernels.total(), "s", detail=dict(kernels.most_common(25)))
    if DEVICE == "cuda":
        figures.add("share in which the GPU is idle", 1 - kernels.total() / update_s)
        figures.add("largest GPU memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")


def seconds_of_kernels(learner: ARPOTorchLearner, batch: QuestionBatch) -> Counter[str]:
    """Kernel -> its seconds in an update. A CPU's kernels are operators, without those that they call."""
    activity = ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        learner.update(batch)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    seconds: Counter[str] = Counter()
    for kernel in profiler.key_averages():
        if kernel.is_user_annotation or (DEVICE == "cuda" and kernel.device_type != DeviceType.CUDA):
            continue
        microseconds = kernel.self_device_time_total if DEVICE == "cuda" else kernel.self_cpu_time_total
        seconds[kernel.key[:80]] += microseconds / 1e6
    return seconds
