"""The memory of learners and engines by hand, and what `gradient_checkpointing="auto"` makes of it.

The model has 1,000 parameters, 300 of them in each of its two layers.
"""

from dataclasses import replace

import pytest
import ray._common.utils
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.engine.memory import RESERVE, EngineShape, computed_kv_cache, engine_need
from rllib_arpo.learner.memory_budget import LearnerShape, learner_need
from rllib_arpo.learner.placement import (
    Decision,
    DeviceGroup,
    decide_checkpointing,
    gpu_groups,
    needed_on,
    num_gpus,
)
from rllib_arpo.policy.model_shape import ModelShape
from tests.learner.builders import build_learner, causal_lm, make_config

MODEL = ModelShape(
    parameters=1000,
    layer_parameters=300,
    root_parameters=400,
    layers=2,
    hidden_size=8,
    vocab_size=50,
    heads=2,
    kv_heads=2,
    head_dim=4,
    intermediate_size=16,
)
#: `gradient_checkpointing="auto"`, not decided.
LEARNER = LearnerShape(tokens_per_pass=10, compute_bytes=2, head_chunk=4)
ENGINE = EngineShape(weight_bytes=2, kv_bytes=2, utilization=0.5, context_tokens=10)
ON_CPU = replace(LEARNER, gpus=0.0)
#: What a learner needs that keeps all activations: 12,000 bytes of weights and moments, 4,000 of gradients, 8,320 of
#: activations, 1,200 of weights cast, 4,400 of the head.
NEEDED = 29_920


@pytest.mark.parametrize(
    ("model", "learner", "resting", "peak"),
    [
        # Adam's 8,000 bytes come for the step, when the 6,060 of activations and of the head are gone.
        (MODEL, replace(LEARNER, offload=True, tokens_per_pass=5), 4_000, 16_000),
        (MODEL, replace(LEARNER, reference=True), 16_000, 30_280),
        # Half of the state; whole are 2,800 bytes of weights, 2,200 of gradients, and what activations take.
        (MODEL, replace(LEARNER, number=2, sharded=True), 6_000, 21_080),
        (MODEL, replace(LEARNER, number=2), 12_000, 26_280),
        (MODEL, replace(LEARNER, checkpointing=False), 12_000, NEEDED),
        (MODEL, replace(LEARNER, checkpointing=True), 12_000, 26_280),
        # Of one layer everything is kept, of the other its input and its attention.
        (MODEL, replace(LEARNER, checkpointing=True, checkpointed_layers=1), 12_000, 26_280 - 560),
        # The base in 2 bytes, the adapter in 16, and nothing is cast; the base itself is the reference.
        (replace(MODEL, adapter_parameters=100), replace(LEARNER, reference=True), 3_200, 10_880),
    ],
)
def test_switches_of_the_learner(model, learner, resting, peak):
    need = learner_need(model, learner)
    assert (need.resting, need.peak) == (resting, peak)


@pytest.mark.parametrize(
    ("engine", "cache", "token", "tokens", "trajectories"),
    [
        # Half of 10,000 bytes, of which 1,000 weights take 2,000; keys and values of two layers, two heads, 4 numbers.
        (ENGINE, 3000, 2 * 2 * 2 * 4 * 2, 46, 4),
        (replace(ENGINE, parallel=2), 4000, 32, 125, 12),
        # Two heads on four GPUs: two GPUs hold the same head.
        (replace(ENGINE, parallel=4), 4500, 32, 140, 14),
        (replace(ENGINE, kv_bytes=1), 3000, 32, 93, 9),
        (replace(ENGINE, kv_cache=640), 640, 64, 10, 1),
        (replace(ENGINE, utilization=0.1), -1000, 64, 0, 0),
    ],
)
def test_an_engine_fills_its_part_with_kv_cache(engine, cache, token, tokens, trajectories):
    need = engine_need(MODEL, engine, 10_000)
    assert (need.cache, need.token.bytes, need.tokens, need.trajectories) == (cache, token, tokens, trajectories)


def test_an_engine_on_a_shared_gpu_computes_what_it_holds_beside_the_cache():
    shared = replace(ENGINE, shares_gpu=True)

    def own(engine: EngineShape, gpu_memory: int) -> list[int]:
        return [term.bytes for term in engine_need(MODEL, engine, gpu_memory).own]

    # Values of a layer, 80 numbers of a token; logits of a step, five arrays; what is set aside.
    assert own(shared, 20 * 10**9) == [8192 * 80 * 2, 5 * 256 * 50 * 4, RESERVE]
    assert own(shared, 80 << 30) == [16_384 * 80 * 2, 5 * 1024 * 50 * 4, RESERVE]
    assert own(replace(shared, parallel=2, batched_tokens=10, sequences=1), 80 << 30) == [10 * 56 * 2, 1000, RESERVE]
    # What the configuration sets, stays.
    assert engine_need(MODEL, replace(shared, kv_cache=640), 10_000).cache == 640


def test_a_part_without_room_for_a_trajectory_is_refused():
    shared = replace(ENGINE, shares_gpu=True, batched_tokens=10, sequences=1)
    room = RESERVE + 2000 + 10 * 80 * 2 + 1000 + 640
    assert computed_kv_cache(MODEL, shared, 2 * room) == 640
    message = (
        r"^engine_kwargs\['gpu_memory_utilization'\]=0\.5: the engine gets 2,147,488,887 bytes and needs 2,147,488,248 "
        r"besides its KV cache, in which a trajectory of 10 tokens takes 640; `rllib-arpo doctor` shows the sum\.$"
    )
    with pytest.raises(ValueError, match=message):
        computed_kv_cache(MODEL, shared, 2 * room - 2)


@pytest.mark.parametrize(("learners", "engines", "number", "groups"), [
    (replace(LEARNER, number=4), replace(ENGINE, number=4), 8, [DeviceGroup(4, 0, 1), DeviceGroup(4, 1, 0)]),
    # In the main process the learner comes first, and otherwise last.
    (replace(LEARNER, gpus=0.5, remote=False), replace(ENGINE, number=3, gpus=0.3), 2,
     [DeviceGroup(1, 1, 1), DeviceGroup(1, 0, 2)]),
    (replace(LEARNER, gpus=0.5), replace(ENGINE, number=3, gpus=0.3), 2, [DeviceGroup(1, 0, 3), DeviceGroup(1, 1, 0)]),
    (LEARNER, replace(ENGINE, gpus=2.0, parallel=2), 3, [DeviceGroup(2, 0, 1), DeviceGroup(1, 1, 0)]),
    (replace(LEARNER, number=2, gpus=0.1), replace(ENGINE, number=2, gpus=0.9), 2, [DeviceGroup(2, 1, 1)]),
    (replace(LEARNER, number=2, gpus=0.55), replace(ENGINE, number=2, gpus=0.45), 3,
     [DeviceGroup(1, 0, 2), DeviceGroup(2, 1, 0)]),
    (LEARNER, replace(ENGINE, gpus=0.0, in_learner=True), 1, [DeviceGroup(1, 1, 1)]),
    # Beside it, two engines for evaluation; then two that take a quarter of a GPU each.
    (replace(LEARNER, remote=False), replace(ENGINE, number=3, in_learner=True), 3,
     [DeviceGroup(1, 1, 1), DeviceGroup(2, 0, 1)]),
    (replace(LEARNER, gpus=0.5), replace(ENGINE, gpus=0.25, evaluation=replace(ENGINE, number=2, gpus=0.25)), 2,
     [DeviceGroup(1, 0, 1, 2), DeviceGroup(1, 1, 0)]),
    (ON_CPU, replace(ENGINE, gpus=0.0), 0, []),
    # Ten tenths are one GPU, whatever their sum is in floating point.
    (ON_CPU, replace(ENGINE, number=10, gpus=0.1), 1, [DeviceGroup(1, 0, 10)]),
])  # fmt: skip
def test_gpus_that_are_shared(learners, engines, number, groups):
    assert gpu_groups(learners, engines) == groups
    assert num_gpus(learners, engines) == number


def test_the_users_of_a_gpu_need_their_memory_at_the_same_time():
    """An engine that sleeps leaves its own to the update; engines of evaluation may have a part of another size."""
    learner = learner_need(MODEL, LEARNER)
    engine = engine_need(MODEL, replace(ENGINE, evaluation=replace(ENGINE, utilization=0.25)), 10_000)
    assert needed_on(DeviceGroup(1, 1, 1), learner, engine, sleeps=False) == 26_280 + 5000
    assert needed_on(DeviceGroup(1, 1, 1), learner, engine, sleeps=True) == 26_280
    assert needed_on(DeviceGroup(1, 1, 3), learner, engine, sleeps=True) == 12_000 + 3 * 5000
    assert needed_on(DeviceGroup(1, 1, 1, 2), learner, engine, sleeps=False) == 26_280 + 5000 + 2 * 2500


@pytest.mark.parametrize(
    ("learner", "engine", "needed"),
    [
        (LEARNER, ENGINE, NEEDED),
        # Half of the GPU is the engine's, which may sleep; a second learner is as large as the first.
        (replace(LEARNER, gpus=0.5), replace(ENGINE, gpus=0.5, kv_cache=640), NEEDED + 2000 + 640),
        (replace(LEARNER, gpus=0.5), replace(ENGINE, gpus=0.5, kv_cache=640, sleeps=True), NEEDED),
        # While it samples, an engine that sleeps in the update may take all: that says nothing of activations.
        (replace(LEARNER, gpus=0.5), replace(ENGINE, gpus=0.5, kv_cache=90_000, sleeps=True), NEEDED),
        (replace(LEARNER, gpus=0.5, number=2), ENGINE, 2 * NEEDED),
        # On a CPU attention is in fp32, 64 bytes a token and layer more, with 16 of its output; the head takes more.
        (ON_CPU, ENGINE, NEEDED + 10 * 2 * (64 + 16) + 800),
        (ON_CPU, replace(ENGINE, gpus=0.0, kv_cache=640), NEEDED + 10 * 2 * (64 + 16) + 800 + 2640),
    ],
)
def test_activations_are_kept_up_to_80_percent(learner, engine, needed):
    fits = -(-needed * 5 // 4)
    assert decide_checkpointing(MODEL, learner, engine, fits) == Decision(0, needed, fits)
    assert decide_checkpointing(MODEL, learner, engine, fits - 2) == Decision(1, needed, fits - 2)
    assert decide_checkpointing(MODEL, learner, engine, needed // 2) == Decision(2, needed, needed // 2)


@pytest.mark.parametrize(("memory", "checkpointing"), [(10**12, False), (10**6, True)])
@pytest.mark.parametrize("engine", ["vllm", "scripted"])
def test_a_learner_decides_by_the_memory_of_its_machine(model, monkeypatch, memory, checkpointing, engine):
    monkeypatch.setattr(ray._common.utils, "get_system_memory", lambda: memory)
    config = make_config(model, "float32", max_tokens_per_pass=4096)
    config.engine = engine
    learner = build_learner(config)
    assert causal_lm(learner).is_gradient_checkpointing == checkpointing
    assert learner.module[DEFAULT_MODULE_ID].model_config["gradient_checkpointing"] == "auto"


@pytest.mark.parametrize("given", [True, False])
def test_what_the_configuration_says_is_done(model, monkeypatch, given):
    monkeypatch.setattr(ray._common.utils, "get_system_memory", lambda: 10**12 if given else 10**6)
    assert causal_lm(build_learner(make_config(model, gradient_checkpointing=given))).is_gradient_checkpointing == given
