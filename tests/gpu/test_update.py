"""Updates of a 1.5B model in bf16: tokens/s, MFU, memory, and trees against packing every trajectory by itself."""

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from release.benchmarks.common.bench import alternate, median, rounded, timed
from release.benchmarks.learner.rollouts import make_rollouts
from release.benchmarks.learner.sides import LearnerSide, build_learner
from release.benchmarks.learner.tree_speedup import seconds_of
from release.benchmarks.learner.tree_workload import make_question
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.learner.training_data import PlanSettings, QuestionBatch
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.gpu.flops import model_flops
from tests.gpu.workbench import DEVICE, Sizes, random_qwen3
from tests.learner import plain
from tests.learner.builders import build_learner as make_learner
from tests.learner.builders import make_batch, make_config, parameters

#: Sum of the trajectories' lengths / unique tokens, of the updates that are timed.
SHARING = 2.5
MFU, OF_IDEAL = 0.35, 0.85


@pytest.fixture(scope="module")
def learner(sizes, work):
    learner = build_learner(random_qwen3(sizes.large, work), "bfloat16", num_gpus=int(torch.cuda.is_available()))
    learner.config = learner.config.copy(copy_frozen=False)
    learner.config.training(max_tokens_per_pass=sizes.tokens_per_pass)
    return learner


@pytest.fixture(scope="module")
def peak(sizes) -> float:
    return max(sizes.peaks().values())


def make_questions(sizes: Sizes, sharing: float) -> list[QuestionTree]:
    return [make_question(sharing, sizes.update_tokens, seed) for seed in range(sizes.update_questions)]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_whole_updates(checkpointing, learner, peak, sizes, figures):
    """Connectors, passes, one step of Adam; model FLOPs over the machine's peak is the ideal."""
    questions, model = make_questions(sizes, SHARING), learner.module[DEFAULT_MODULE_ID].causal_lm
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    batch = QuestionBatch.plan([TreeEpisode(tree) for tree in questions], PlanSettings.from_config(learner.config))
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds = [timed(learner.update, batch)[0] for _ in range(sizes.repeats + 1)][1:]
    finally:
        model.gradient_checkpointing_disable()
    rollouts = make_rollouts(questions)
    tokens, ideal_s = rollouts.sizes(), model_flops(model, rollouts.trees) / peak
    detail = {"seconds": rounded(seconds), **tokens, "tokens_per_pass": sizes.tokens_per_pass}
    figures.add("unique tokens", tokens["unique_tokens"] / median(seconds), "tokens/s", detail=detail)
    target = {} if checkpointing else {"at_least": MFU}
    figures.add("MFU", ideal_s / median(seconds), is_speed=True, detail={"ideal_s": ideal_s}, **target)
    if DEVICE == "cuda":
        figures.add("largest GPU memory", torch.cuda.max_memory_allocated() / 2**30, "GiB")


@pytest.mark.parametrize("offload", [False, True])
def test_offloaded_states_are_on_the_cpu_between_steps(model_folder, offload):
    config = make_config(model_folder, dtype="float32", optimizer_offload=offload).copy(copy_frozen=False)
    learner = make_learner(config.learners(num_learners=0, num_gpus_per_learner=1))
    for _ in range(2):
        learner.update(make_batch(config, [plain.random_question(seed, f"q{seed}") for seed in range(4)]))
    [optimizer] = learner._named_optimizers.values()
    devices = {state["exp_avg"].device.type for state in optimizer.state.values()}
    assert devices == {"cpu" if offload else "cuda"}
    assert {p.device.type for p in parameters(learner).values()} == {"cuda"}
    assert all(torch.isfinite(p).all() for p in parameters(learner).values())


def test_trees_against_packing(learner, sizes, figures):
    """Speedup over packing without sharing, by the same kernels, over the speedup that sharing allows."""
    for sharing in sizes.sharing:
        rollouts = make_rollouts(make_questions(sizes, sharing))
        chains = [path.packed for path in rollouts.paths]
        sides = {
            name: LearnerSide(learner, packed, rollouts.scalars, sizes.tokens_per_pass)
            for name, packed in (("ours", rollouts.trees), ("packed", chains))
        }
        runs = {name: lambda _, side=side: seconds_of(side) for name, side in sides.items()}
        seconds = alternate(runs, sizes.repeats)
        speedup = median([packed / ours for ours, packed in zip(seconds["ours"], seconds["packed"], strict=True)])
        detail = {"speedup": speedup, **{f"{name}_s": rounded(values) for name, values in seconds.items()}}
        ideal = rollouts.num_flat / rollouts.num_unique
        name = f"share of the ideal speedup {ideal:.2f}"
        figures.add(name, speedup / ideal, at_least=OF_IDEAL, is_speed=True, detail=detail | rollouts.sizes())
