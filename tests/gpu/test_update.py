"""Forward and backward of a 1.5B model in bf16, trees against packing every trajectory by itself; Adam on the CPU."""

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from release.benchmarks.common.bench import alternate, median, rounded
from release.benchmarks.learner.rollouts import make_rollouts
from release.benchmarks.learner.sides import LearnerSide
from release.benchmarks.learner.tree_speedup import seconds_of
from tests.gpu.flops import model_flops
from tests.gpu.workbench import SIZES
from tests.learner import plain
from tests.learner.builders import build_learner, make_batch, make_config, parameters

OF_IDEAL = 0.85


@pytest.mark.parametrize("sharing", SIZES.sharing)
@pytest.mark.parametrize("tokens_per_pass", SIZES.tokens_per_pass)
def test_trees_against_packing(tokens_per_pass, sharing, learner, sizes, figures):
    """Speedup over packing without sharing, by the same kernels, over the speedup that sharing allows."""
    rollouts = make_rollouts(sizes.update_trees(sharing))
    packed = {"ours": rollouts.trees, "packed": rollouts.paths}
    sides = {name: LearnerSide(learner, side, rollouts.scalars, tokens_per_pass) for name, side in packed.items()}
    runs = {name: lambda _, side=side: seconds_of(side) for name, side in sides.items()}
    seconds = alternate(runs, sizes.repeats)
    speedup = median([theirs / ours for ours, theirs in zip(seconds["ours"], seconds["packed"], strict=True)])
    detail = {f"{name}_s": rounded(values) for name, values in seconds.items()} | rollouts.sizes()
    detail["passes"] = {name: len(side.passes) for name, side in sides.items()}
    figures.add("speedup", speedup, detail=detail)
    ideal = rollouts.num_flat / rollouts.num_unique
    figures.add(f"share of the ideal speedup {ideal:.2f}", speedup / ideal, at_least=OF_IDEAL, is_speed=True)
    model = learner.module[DEFAULT_MODULE_ID].causal_lm
    allowed = model_flops(model, packed["packed"]) / model_flops(model, packed["ours"])
    figures.add(f"share of the speedup {allowed:.2f} that the FLOPs allow", speedup / allowed)


@pytest.mark.parametrize("offload", [False, True])
def test_offloaded_states_are_on_the_cpu_between_steps(model_folder, offload):
    config = make_config(model_folder, dtype="float32", optimizer_offload=offload).copy(copy_frozen=False)
    learner = build_learner(config.learners(num_learners=0, num_gpus_per_learner=1))
    for _ in range(2):
        learner.update(make_batch(config, [plain.random_question(seed, f"q{seed}") for seed in range(4)]))
    [optimizer] = learner._named_optimizers.values()
    devices = {state["exp_avg"].device.type for state in optimizer.state.values()}
    assert devices == {"cpu" if offload else "cuda"}
    assert {p.device.type for p in parameters(learner).values()} == {"cuda"}
    assert all(torch.isfinite(p).all() for p in parameters(learner).values())
