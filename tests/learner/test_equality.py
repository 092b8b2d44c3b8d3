"""The packed learner against plain training, one trajectory at a time: every option, four architectures, random trees.

The log-probs before the update are those of another model, so that ratios lie on both sides of the clip range.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.policy.attention import path_gather
from tests.helpers.models import tiny_model
from tests.learner import plain
from tests.learner.builders import build_learner, make_batch, make_config, record_gradients

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral")
OPTIONS = {
    "soft": {},
    "hard": {"attribution": "hard"},
    "sequence mean": {"loss_aggregation": "sequence_mean"},
    "hard, sequence mean": {"attribution": "hard", "loss_aggregation": "sequence_mean"},
    "Dr. GRPO": {"loss_aggregation": "constant", "normalize_std": False},
    "clip-higher": {"clip_high": 0.28},
    "dual clip": {"dual_clip": 1.5, "importance_cap": None},
    "truncated importance sampling": {"importance_cap": 1.1},
    "KL": {"kl_coeff": 0.3},
    "entropy bonus": {"entropy_coeff": 0.2},
    "AEPO": {"keep_clipped_gradient": True, "entropy_advantage_coeff": 0.5},
    "AEPO, hard, dual clip": {
        "keep_clipped_gradient": True,
        "entropy_advantage_coeff": 2.0,
        "attribution": "hard",
        "dual_clip": 1.5,
    },
    "Tree-GRPO": {"baseline": "tree"},
    "everything": {"clip_high": 0.28, "dual_clip": 3.0, "kl_coeff": 0.1, "entropy_coeff": 0.1, "attribution": "hard"},
}
SHAPES = {
    "any": {},
    "single leaf": {"max_roots": 1, "max_turns": 1, "max_forks": 0},
    "no forks": {"max_forks": 0},
    "nested forks": {"max_roots": 1, "max_forks": 9, "max_turns": 2},
    "forks after the first token": {"max_turn_tokens": 1, "empty_probability": 0.0, "max_forks": 6},
    "forks after the last turn": {"trailing_observation_probability": 1.0, "max_turns": 1, "max_forks": 6},
    "empty responses": {"empty_probability": 0.5},
    "masked leaves": {"masked_probability": 0.4},
}


@dataclass(frozen=True)
class Models:
    """Of one architecture: the learner, and plain models with its weights and with those before the update."""

    learner: ARPOTorchLearner
    current: torch.nn.Module
    before: torch.nn.Module
    before_packed: torch.nn.Module


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    @functools.cache
    def make(architecture: str) -> Models:
        folders = []
        for seed in (0, 1):
            folder = tmp_path_factory.mktemp(f"{architecture}{seed}")
            folders.append(tiny_model(folder, architecture, seed=seed, num_layers=1, sliding_window=None))
        # With a learning rate of 0 the weights stay as they are, case after case.
        first, second = (build_learner(make_config(f, dtype="float32", lr=0.0, kl_coeff=0.1)) for f in folders)
        record_gradients(first)
        current, before = (plain.load(folder, torch.float32) for folder in folders)
        return Models(first, current, before, second.module[DEFAULT_MODULE_ID])

    return make


@pytest.fixture(autouse=True)
def a_block_per_chain(monkeypatch):
    """Trees as small as these would otherwise fit in one block, and no path would be gathered."""
    monkeypatch.setattr(path_gather, "MAX_WASTED_PAIRS", -1)


def packed(models: Models, trees: list[QuestionTree], config) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one optimizer step of the learner."""
    learner = models.learner
    learner.config = config
    learner._learner_connector = config.build_learner_connector(None, None)
    learner._reference = models.before_packed if config.kl_coeff else None

    def score(pieces, is_single_step):
        before = learner._log_probs(models.before_packed, pieces)
        pieces = [replace(piece, old_log_probs=values) for piece, values in zip(pieces, before, strict=True)]
        if config.kl_coeff:
            pieces = [replace(piece, reference_log_probs=piece.old_log_probs) for piece in pieces]
        return pieces

    losses = []

    def compute_loss(**kwargs):
        losses.append(ARPOTorchLearner.compute_loss_for_module(learner, **kwargs))
        return losses[-1]

    learner._score, learner.compute_loss_for_module = score, compute_loss
    learner.recorded.clear()
    learner.update(make_batch(config, trees))
    [gradients] = learner.recorded
    return sum(loss.item() for loss in losses), gradients


def per_trajectory(models: Models, trees: list[QuestionTree], config) -> tuple[float, dict[str, torch.Tensor]]:
    model = models.current
    model.zero_grad()
    before = plain.all_log_probs(models.before, trees, config.temperature)
    loss = plain.loss(model, trees, config, old=before, reference=before)
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    options=st.sampled_from(sorted(OPTIONS)),
    shape=st.sampled_from(sorted(SHAPES)),
    seed=st.integers(0, 2**16),
    temperature=st.sampled_from([0.7, 1.0]),
    max_tokens_per_pass=st.sampled_from([60, 4096]),
)
def test_loss_and_gradients_are_those_of_plain_training(
    models, architecture, options, shape, seed, temperature, max_tokens_per_pass
):
    of_architecture = models(architecture)
    trees = [plain.random_question(seed + i, f"q{i}", **SHAPES[shape]) for i in range(2)]
    settings = {"questions_per_minibatch": 2, "max_tokens_per_pass": max_tokens_per_pass, **OPTIONS[options]}
    folder = of_architecture.learner.config.model_name_or_path
    config = make_config(folder, dtype="float32", lr=0.0, **settings).adaptive_rollout(temperature=temperature)
    of_architecture.learner.module[DEFAULT_MODULE_ID]._temperature = temperature
    of_architecture.before_packed._temperature = temperature
    if not any(t.counts for tree in trees for t in tree.trajectories):
        return
    loss, gradients = packed(of_architecture, trees, config)
    expected_loss, expected = per_trajectory(of_architecture, trees, config)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    scale = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (gradients[name] - gradient).norm() <= 1e-5 * max(scale, 1e-3), name
