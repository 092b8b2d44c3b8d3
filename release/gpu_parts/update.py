"""Updates of a 1.5B model in bf16: tokens/s, MFU, memory, and trees against packing every trajectory by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from release.benchmarks.common.bench import alternate, median, rounded, timed
from release.benchmarks.learner.flops import model_flops
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import LearnerSide, build_learner, synchronized
from release.benchmarks.learner.tree_speedup import seconds_of
from release.benchmarks.learner.tree_workload import make_question
from release.gpu_parts.machine import bf16_peaks
from release.gpu_parts.models import random_qwen2
from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes
from rllib_arpo.learner.training_data import PlanSettings, QuestionBatch
from rllib_arpo.rollout.episodes import tree_to_episode

if TYPE_CHECKING:
    from rllib_arpo.core.tree import QuestionTree
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

#: Sum of the trajectories' lengths / unique tokens, of the updates that are timed.
SHARING = 2.5
MFU, OF_IDEAL = 0.35, 0.85


def run(sizes: Sizes, report: Report, work: Path) -> None:
    learner = build_learner(random_qwen2(sizes.large, work), "bfloat16", num_gpus=int(torch.cuda.is_available()))
    learner.config = learner.config.copy(copy_frozen=False)
    learner.config.training(max_tokens_per_pass=sizes.update.tokens_per_pass)
    questions = _questions(sizes, SHARING)
    model = learner.module[DEFAULT_MODULE_ID].causal_lm
    peak = max(bf16_peaks(sizes, model.device.type).values())
    flops = model_flops(model, make_rollouts(questions).trees)
    for name, target in (("", MFU), (" with gradient checkpointing", None)):
        with report.attempt(f"update{name}"):
            if name:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            _time_updates(name, target, learner, questions, flops / peak, sizes, report)
    model.gradient_checkpointing_disable()
    for sharing in sizes.update.sharing:
        with report.attempt(f"trees against packing, sharing {sharing}"):
            _against_packing(learner, sharing, sizes, report)


def _questions(sizes: Sizes, sharing: float) -> list[QuestionTree]:
    return [make_question(sharing, sizes.update.question_tokens, seed) for seed in range(sizes.update.num_questions)]


def _time_updates(
    name: str,
    target: float | None,
    learner: ARPOTorchLearner,
    questions: list[QuestionTree],
    ideal_s: float,
    sizes: Sizes,
    report: Report,
) -> None:
    """Whole calls of `update`: connectors, passes, one step of Adam.

    Args:
        name: of the variant.
        target: of its MFU.
        ideal_s: model FLOPs over the machine's peak.
    """
    device = learner.module[DEFAULT_MODULE_ID].causal_lm.device
    batch = QuestionBatch.plan([tree_to_episode(tree) for tree in questions], PlanSettings.from_config(learner.config))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    update = synchronized(lambda: learner.update(batch), device)
    seconds = [timed(update)[0] for _ in range(sizes.repeats + 1)][1:]
    tokens = make_rollouts(questions).sizes()
    detail = {"seconds": rounded(seconds), **tokens, "tokens_per_pass": sizes.update.tokens_per_pass}
    report.add(f"update{name}: unique tokens", tokens["unique_tokens"] / median(seconds), "tokens/s", detail=detail)
    mfu = ideal_s / median(seconds)
    report.add(f"update{name}: MFU", mfu, at_least=target, is_speed=True, detail={"ideal_s": ideal_s})
    if device.type == "cuda":
        report.add(f"update{name}: largest GPU memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")


def _against_packing(learner: ARPOTorchLearner, sharing: float, sizes: Sizes, report: Report) -> None:
    """Speedup over packing without sharing, by the same kernels, over the speedup that sharing allows."""
    rollouts: Rollouts = make_rollouts(_questions(sizes, sharing))
    chains = [path.packed for path in rollouts.paths]
    sides = {
        name: LearnerSide(learner, packed, rollouts.scalars, sizes.update.tokens_per_pass)
        for name, packed in (("ours", rollouts.trees), ("packed", chains))
    }
    runs = {name: lambda _, side=side: seconds_of(side) for name, side in sides.items()}
    seconds = alternate(runs, sizes.repeats)
    speedup = median([packed / ours for ours, packed in zip(seconds["ours"], seconds["packed"], strict=True)])
    detail = {"speedup": speedup, **{f"{name}_s": rounded(values) for name, values in seconds.items()}}
    share = speedup * rollouts.num_unique / rollouts.num_flat
    name = f"forward and backward of trees, share of sum/unique {rollouts.num_flat / rollouts.num_unique:.2f}"
    report.add(name, share, at_least=OF_IDEAL, is_speed=True, detail=detail | rollouts.sizes())
