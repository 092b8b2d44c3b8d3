"""Memory by hand: a model of 1,000 parameters, of which 300 are in each of its two layers."""

from dataclasses import replace

import pytest

from rllib_arpo.engine.memory import EngineShape, Term, computed_kv_cache, engine_need
from rllib_arpo.learner.memory_budget import LearnerShape, head_terms, learner_need
from rllib_arpo.learner.placement import DeviceGroup, cpu_group, gpu_groups, needed_on, num_gpus, place_on_gpus
from rllib_arpo.policy.model_shape import ModelShape

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
LEARNER = LearnerShape(
    number=1,
    gpus=1.0,
    sharded=False,
    reference=False,
    offload=False,
    checkpointing=True,
    tokens_per_pass=10,
    compute_bytes=2,
    head_chunk=4,
)
ENGINE = EngineShape(
    number=1,
    gpus=1.0,
    in_learner=False,
    parallel=1,
    weight_bytes=2,
    kv_bytes=2,
    utilization=0.5,
    kv_cache=None,
    context_tokens=10,
    sleeps=False,
)


def test_a_learner_holds_16_bytes_a_parameter_and_activations():
    need = learner_need(MODEL, LEARNER)
    assert need.kept == (
        Term("weights", 4000, "1,000 parameters x 4 bytes"),
        Term("Adam's two moments", 8000, "1,000 parameters x 8 bytes"),
    )
    assert need.passes == (
        Term("gradients", 4000, "1,000 parameters x 4 bytes"),
        Term("inputs of the layers", 640, "10 tokens x 8 numbers x 2 layers x 4 bytes"),
        # 2 x 2 (8 + 8) of attention, 4 (2 + 2), 16 x 8 of norms, 2 (5 x 8 + 4 x 16) of products.
        Term("activations of a layer", 4160, "10 tokens x 416 bytes x 1 layer"),
        Term("weights of the layers, cast", 600, "300 parameters x 1 layer x 2 bytes"),
        Term("the LM head, cast", 800, "50 words x 8 numbers x 2 bytes"),
        Term("gradient of the LM head", 1600, "50 words x 8 numbers x 4 bytes"),
        Term("chunk of the LM head", 1600, "2 arrays x 4 tokens x 50 logits x 4 bytes"),
    )
    assert (need.resting, need.peak) == (12_000, 25_400)


@pytest.mark.parametrize(
    ("model", "learner", "terms"),
    [
        # The base of a LoRA is frozen, and has the type of the products.
        (
            replace(MODEL, adapter_parameters=100),
            LEARNER,
            [Term("chunk of the LM head", 1600, "2 arrays x 4 tokens x 50 logits x 4 bytes")],
        ),
        (
            MODEL,
            replace(LEARNER, compute_bytes=4, tokens_per_pass=3),
            [
                Term("gradient of the LM head", 1600, "50 words x 8 numbers x 4 bytes"),
                Term("chunk of the LM head", 1200, "2 arrays x 3 tokens x 50 logits x 4 bytes"),
            ],
        ),
        # FSDP2 has assembled the gradient. In small chunks the largest thing is their part of it.
        (
            MODEL,
            replace(LEARNER, number=2, sharded=True, head_chunk=2),
            [
                Term("the LM head, cast", 800, "50 words x 8 numbers x 2 bytes"),
                Term("chunk of the LM head", 1000, "50 words x (2 tokens x 2 bytes + 8 numbers x 2 bytes)"),
            ],
        ),
        (
            MODEL,
            replace(LEARNER, gpus=0.0),
            [
                Term("the LM head, cast", 800, "50 words x 8 numbers x 2 bytes"),
                Term("gradient of the LM head", 1600, "50 words x 8 numbers x 4 bytes"),
                Term("chunk of the LM head", 2800, "50 words x (4 tokens x 2 bytes + 8 numbers x 6 bytes)"),
            ],
        ),
    ],
)
def test_the_head_of_other_learners(model, learner, terms):
    assert head_terms(model, learner) == terms


def test_fsdp2_divides_the_state_and_assembles_layers():
    need = learner_need(MODEL, replace(LEARNER, number=2, sharded=True))
    assert need.kept == (
        Term("weights", 2000, "1,000 parameters x 4 bytes / 2 learners"),
        Term("Adam's two moments", 4000, "1,000 parameters x 8 bytes / 2 learners"),
    )
    assert need.passes[:3] == (
        Term("gradients", 2000, "1,000 parameters x 4 bytes / 2 learners"),
        Term("weights assembled", 4000, "(400 outside of the layers + 2 x 300 of a layer) x 4 bytes"),
        Term("their gradients", 2800, "(400 outside of the layers + 300 of a layer) x 4 bytes"),
    )
    assert need.peak == 6000 + 8800 + 640 + 4160 + 600 + 800 + 1600
    # Replicas do not divide anything.
    assert learner_need(MODEL, replace(LEARNER, number=2)) == learner_need(MODEL, LEARNER)


@pytest.mark.parametrize(
    ("model", "learner", "resting", "peak"),
    [
        # Adam's 8,000 bytes come for the step, when the 6,060 of activations and of the head are gone.
        (MODEL, replace(LEARNER, offload=True, tokens_per_pass=5), 4_000, 16_000),
        (MODEL, replace(LEARNER, reference=True), 16_000, 29_400),
        (MODEL, replace(LEARNER, checkpointing=False), 12_000, 20_000 + 8_320 + 1_200),
        # The base in 2 bytes, the adapter in 16, and nothing is cast; the base itself is the reference.
        (replace(MODEL, adapter_parameters=100), replace(LEARNER, reference=True), 3_200, 10_000),
    ],
)
def test_switches_of_the_learner(model, learner, resting, peak):
    need = learner_need(model, learner)
    assert (need.resting, need.peak) == (resting, peak)


def test_an_engine_fills_its_part_with_kv_cache():
    need = engine_need(MODEL, ENGINE, 10_000)
    assert need.total == Term("its part", 5000, "0.5 of the GPU's 10,000 bytes")
    assert need.weights == Term("weights", 2000, "1,000 parameters x 2 bytes")
    assert need.token == Term("a token", 64, "2 keys and values x 2 layers x 2 heads x 4 numbers x 2 bytes")
    assert (need.cache, need.tokens, need.trajectories) == (3000, 46, 4)


@pytest.mark.parametrize(
    ("engine", "cache", "token", "tokens", "trajectories"),
    [
        (replace(ENGINE, parallel=2), 4000, 32, 125, 12),
        # Two heads on four GPUs: two GPUs hold the same head.
        (replace(ENGINE, parallel=4), 4500, 32, 140, 14),
        (replace(ENGINE, kv_bytes=1), 3000, 32, 93, 9),
        (replace(ENGINE, kv_cache=640), 640, 64, 10, 1),
        (replace(ENGINE, utilization=0.1), -1000, 64, 0, 0),
    ],
)
def test_switches_of_the_engine(engine, cache, token, tokens, trajectories):
    need = engine_need(MODEL, engine, 10_000)
    assert (need.cache, need.token.bytes, need.tokens, need.trajectories) == (cache, token, tokens, trajectories)


def test_an_engine_on_a_shared_gpu_computes_what_it_holds_beside_the_cache():
    """A quarter of 20 GB; 40 bytes of a trajectory are 10 tokens."""
    shared = replace(ENGINE, gpus=0.25, utilization=0.25, shares_gpu=True)
    need = engine_need(MODEL, shared, 20 * 10**9)
    assert need.own == (
        Term("values of a layer", 1_310_720, "8,192 tokens x 80 numbers x 2 bytes"),
        Term("logits of a step", 256_000, "5 arrays x 256 sequences x 50 logits x 4 bytes"),
        Term("set aside", 2_147_483_648, "CUDA's context, libraries and graphs"),
    )
    assert need.cache == 5 * 10**9 - 2000 - 1_310_720 - 256_000 - 2_147_483_648
    assert computed_kv_cache(MODEL, shared, 20 * 10**9) == need.cache
    large = engine_need(MODEL, shared, 80 << 30)
    assert [term.bytes for term in large.own[:2]] == [2 * 1_310_720, 4 * 256_000]
    limited = engine_need(MODEL, replace(shared, parallel=2, batched_tokens=10, sequences=1), 80 << 30)
    assert [term.bytes for term in limited.own[:2]] == [10 * 56 * 2, 1000]
    # What the configuration sets, stays.
    assert engine_need(MODEL, replace(shared, kv_cache=640), 10_000).cache == 640


def test_a_part_without_room_for_a_trajectory_is_refused():
    shared = replace(ENGINE, utilization=0.5, shares_gpu=True, batched_tokens=10, sequences=1)
    room = 2_147_483_648 + 2000 + 10 * 80 * 2 + 1000 + 640
    assert computed_kv_cache(MODEL, shared, 2 * room) == 640
    with pytest.raises(ValueError) as raised:
        computed_kv_cache(MODEL, shared, 2 * room - 2)
    assert str(raised.value) == (
        "engine_kwargs['gpu_memory_utilization']=0.5: of 2,147,488,887 bytes the engine needs 2,147,488,248 beside its "
        "KV cache, and a trajectory of 10 tokens 640; `rllib-arpo doctor` has the sum."
    )


@pytest.mark.parametrize(("learners", "engines", "number", "groups"), [
    (replace(LEARNER, number=4), replace(ENGINE, number=4), 8, [DeviceGroup(4, 0, 1), DeviceGroup(4, 1, 0)]),
    (replace(LEARNER, gpus=0.75), replace(ENGINE, gpus=0.25), 1, [DeviceGroup(1, 1, 1)]),
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
    (replace(LEARNER, gpus=0.0), replace(ENGINE, gpus=0.0), 0, []),
    # Ten tenths are one GPU, whatever their sum is in floating point.
    (replace(LEARNER, gpus=0.0), replace(ENGINE, number=10, gpus=0.1), 1, [DeviceGroup(1, 0, 10)]),
])  # fmt: skip
def test_gpus_that_are_shared(learners, engines, number, groups):
    assert gpu_groups(learners, engines) == groups
    assert num_gpus(learners, engines) == number


@pytest.mark.parametrize(("shares", "expected"), [
    ([0.45, 0.45, 0.55, 0.55], [[0], [0], [1], [2]]),
    ([0.55, 0.55, 0.45, 0.45], [[0], [1], [0], [1]]),
    # The fullest GPU that has room, not the first one.
    ([0.5, 0.7, 0.3, 0.5], [[0], [1], [1], [0]]),
    ([2.0, 0.0, 0.5, 1.0], [[0, 1], [], [2], [3]]),
])  # fmt: skip
def test_ray_fills_the_fullest_gpu_first(shares, expected):
    assert place_on_gpus(shares) == expected


def test_a_sleeping_engine_leaves_its_memory_to_the_update():
    learner, engine = learner_need(MODEL, LEARNER), engine_need(MODEL, ENGINE, 10_000)
    assert needed_on(DeviceGroup(1, 1, 1), learner, engine, sleeps=False) == 25_400 + 5000
    assert needed_on(DeviceGroup(1, 1, 1), learner, engine, sleeps=True) == 25_400
    assert needed_on(DeviceGroup(1, 1, 3), learner, engine, sleeps=True) == 12_000 + 3 * 5000


def test_engines_of_evaluation_hold_their_own_part():
    shared = replace(ENGINE, evaluation=replace(ENGINE, utilization=0.25))
    learner, engine = learner_need(MODEL, LEARNER), engine_need(MODEL, shared, 10_000)
    assert (engine.total.bytes, engine.evaluation.total.bytes) == (5000, 2500)
    assert needed_on(DeviceGroup(1, 1, 1, 2), learner, engine, sleeps=False) == 25_400 + 5000 + 2 * 2500
    assert needed_on(DeviceGroup(1, 0, 0, 1), learner, engine, sleeps=True) == 2500


@pytest.mark.parametrize(
    ("learners", "engines", "group"),
    [
        (replace(LEARNER, number=2, gpus=0.0), replace(ENGINE, gpus=0.0, parallel=2), DeviceGroup(1, 2, 2)),
        (replace(LEARNER, gpus=0.0), replace(ENGINE, gpus=0.0, in_learner=True), DeviceGroup(1, 1, 1)),
        (LEARNER, replace(ENGINE, gpus=0.0, in_learner=True), DeviceGroup(1, 0, 0)),
        (replace(LEARNER, gpus=0.0), ENGINE, DeviceGroup(1, 1, 0)),
        (LEARNER, replace(ENGINE, evaluation=replace(ENGINE, number=2, gpus=0.0)), DeviceGroup(1, 0, 0, 2)),
    ],
)
def test_what_is_on_the_cpu(learners, engines, group):
    assert cpu_group(learners, engines) == group
