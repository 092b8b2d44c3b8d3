"""`gradient_checkpointing="auto"`, on devices of sizes around the budget of `test_memory_budget.py`."""

from dataclasses import replace

import pytest
import ray._common.utils
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.learner.memory_budget import learner_need
from rllib_arpo.learner.placement import Decision, decide_checkpointing
from tests.learner.builders import build_learner, causal_lm, make_config
from tests.learner.test_memory_budget import ENGINE, LEARNER, MODEL

UNDECIDED = replace(LEARNER, checkpointing=None)
ON_CPU = replace(UNDECIDED, gpus=0.0)
#: 12,000 of weights and moments, 4,000 of gradients, 8,320 of activations, 1,200 of weights cast, 4,000 of the head.
NEEDED = 29_520


@pytest.mark.parametrize(
    ("learner", "engine", "needed"),
    [
        (UNDECIDED, ENGINE, NEEDED),
        # Half of the GPU is the engine's, which may sleep; a second learner is as large as the first.
        (replace(UNDECIDED, gpus=0.5), replace(ENGINE, gpus=0.5, kv_cache=640), NEEDED + 2000 + 640),
        (replace(UNDECIDED, gpus=0.5), replace(ENGINE, gpus=0.5, kv_cache=640, sleeps=True), NEEDED),
        # While it samples, an engine that sleeps in the update may take all: that says nothing of activations.
        (replace(UNDECIDED, gpus=0.5), replace(ENGINE, gpus=0.5, kv_cache=90_000, sleeps=True), NEEDED),
        (replace(UNDECIDED, gpus=0.5, number=2), ENGINE, 2 * NEEDED),
        # On a CPU attention is in fp32, 64 bytes a token and layer more, with 16 of its output; the head takes more.
        (ON_CPU, ENGINE, NEEDED + 10 * 2 * (64 + 16) + 1200),
        (ON_CPU, replace(ENGINE, gpus=0.0, kv_cache=640), NEEDED + 10 * 2 * (64 + 16) + 1200 + 2640),
    ],
)
def test_activations_are_kept_up_to_80_percent(learner, engine, needed):
    fits = -(-needed * 5 // 4)
    assert decide_checkpointing(MODEL, learner, engine, fits) == Decision(False, needed, fits)
    assert decide_checkpointing(MODEL, learner, engine, fits - 2) == Decision(True, needed, fits - 2)


def test_undecided_is_counted_as_checkpointing():
    assert learner_need(MODEL, UNDECIDED) == learner_need(MODEL, LEARNER)


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
