"""Learners on tiny models, and a look at what they do."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.learner.training_data import QuestionBatch
from rllib_arpo.policy.sharded_state import whole_array
from rllib_arpo.rollout.episodes import TreeEpisode

TOKENS = gym.spaces.Box(0, 2**31 - 1, (1,), np.int32)
SPACES = {DEFAULT_MODULE_ID: (TOKENS, TOKENS)}


def make_config(model: str, dtype: str = "float64", **training) -> ARPOConfig:
    config = ARPOConfig().language_model(model_name_or_path=model, dtype=dtype)
    return config.training(**{"lr": 1e-2, "questions_per_minibatch": 2, **training})


def make_batch(config: ARPOConfig, trees: Sequence[QuestionTree]) -> QuestionBatch:
    return QuestionBatch.plan([TreeEpisode(tree) for tree in trees], config)


def build_learner(config: ARPOConfig) -> ARPOTorchLearner:
    return config.build_learner(spaces=SPACES)


def causal_lm(learner: ARPOTorchLearner) -> torch.nn.Module:
    return learner.module[DEFAULT_MODULE_ID].causal_lm


def parameters(learner: ARPOTorchLearner) -> dict[str, Tensor]:
    """Copies of the parameters, by name."""
    return {name: p.detach().clone() for name, p in causal_lm(learner).named_parameters()}


def whole_parameters(learner: ARPOTorchLearner) -> dict[str, Tensor]:
    """Copies of the weights, by name; where learners hold parts, of the first learner alone."""
    return {name: torch.tensor(array) for name, array in learner.module[DEFAULT_MODULE_ID].weight_views().items()}


def record_gradients(learner: ARPOTorchLearner) -> None:
    """From now on `learner.recorded` holds each optimizer step's gradients, by name, before clipping and Adam.

    Where learners hold parts, the first has the whole ones and the others none.
    """
    learner.recorded = []
    names = {p: name for name, p in causal_lm(learner).named_parameters()}
    postprocess = learner.postprocess_gradients

    def recording(gradients):
        whole = {names[p]: whole_array(gradient) for p, gradient in gradients.items()}
        learner.recorded.append({name: torch.tensor(array) for name, array in whole.items() if array is not None})
        return postprocess(gradients)

    learner.postprocess_gradients = recording


def metrics(result: dict) -> dict[str, float]:
    """The module's metrics of one `Learner.update`."""
    return {name: float(stats.peek()) for name, stats in result[DEFAULT_MODULE_ID].items()}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], rtol: float) -> None:
    """Every tensor within `rtol` of the expected one, relative to its largest entry."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = tensor.abs().max().item()
        difference = (actual[name] - tensor).abs().max().item()
        assert difference <= rtol * scale, f"{name}: {difference:.3g} of {scale:.3g}"


def assert_same_gradient(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """fp32: the norm of the difference is within 1e-5 of the gradient's, and no tensor stands out.

    In single tensors, terms of both signs leave less than what they are rounded by.
    """
    assert_close(actual, expected, rtol=5e-5)
    squares = [(actual[name].double() - tensor.double()).square().sum() for name, tensor in expected.items()]
    norm = sum(tensor.double().square().sum() for tensor in expected.values()).sqrt()
    assert sum(squares).sqrt() <= 1e-5 * norm
