"""Between two passes the learner does not wait for its device.

Tensors of the "meta" device have no values: whatever would read a GPU's, and so wait for it, is an error there.
"""

import contextlib
import functools

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.core.columns import WEIGHT
from rllib_arpo.policy import lm_head
from rllib_arpo.policy.attention import tree, varlen
from tests.learner import plain
from tests.learner.builders import build_learner, make_batch, make_config

META = torch.device("meta")


@pytest.fixture
def without_values(monkeypatch):
    """`without_values(learner)` moves a learner to the meta device, and notes in `learner.done` what it has done."""

    def move(learner):
        monkeypatch.setattr(tree, "choose_kernel", lambda *_: "varlen")
        monkeypatch.setattr(varlen, "check_here", lambda *_: None)
        monkeypatch.setitem(lm_head.CHUNK_SIZES, "meta", 8)
        monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
        learner._device = META
        for module in (learner.module[DEFAULT_MODULE_ID], learner._reference):
            if module is not None:
                module.causal_lm.to(META)
        learner.done = []
        for owner, name in ((learner, "_accumulate_gradients"), (learner._sharding, "norm")):
            setattr(owner, name, noting(learner.done, getattr(owner, name)))
        return learner

    return move


def noting(done, function):
    @functools.wraps(function)
    def noted(*args):
        result = function(*args)
        done.append(function.__name__)
        return result

    return noted


def update_until_a_read(learner, config, **shape):
    """What was done when something first read the device."""
    questions = [plain.random_question(seed, f"q{seed}", masked_probability=0.0, **shape) for seed in range(8)]
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        learner.update(make_batch(config, questions))
    return learner.done


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, {}),
        ({"entropy_coeff": 0.1, "entropy_advantage_coeff": 0.5, "keep_clipped_gradient": True}, {}),
        ({"kl_coeff": 0.1, "questions_per_minibatch": 4}, {}),
        ({"kl_coeff": 0.1, "kl_in_reward": True, "baseline": "batch"}, {"max_forks": 0}),
        ({"gradient_checkpointing": True}, {}),
    ],
)
def test_an_update_first_reads_the_device_when_it_has_the_norm(tiny_folder, without_values, settings, shape):
    settings = {"questions_per_minibatch": 8, "max_tokens_per_pass": 60, **settings}
    config = make_config(tiny_folder("llama"), "float32", **settings)
    done = update_until_a_read(without_values(build_learner(config)), config, **shape)
    assert len(done) > 2
    assert done == ["_accumulate_gradients"] * (len(done) - 1) + ["norm"]


def test_a_read_in_a_pass_is_noticed(tiny_folder, without_values):
    config = make_config(tiny_folder("llama"), "float32", questions_per_minibatch=8, max_tokens_per_pass=60)
    learner = without_values(build_learner(config))
    compute_loss = learner.compute_loss_for_module
    learner.compute_loss_for_module = lambda **kwargs: compute_loss(**kwargs) * float(kwargs["batch"][WEIGHT].sum() > 0)
    assert update_until_a_read(learner, config) == []
