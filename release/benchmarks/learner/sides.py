"""Computes forward and backward of the same rollouts in two ways: as our learner's trees, and packed without sharing.

Both have the same loss: ARPO's defaults with `importance_cap=None`, which needs no log-probs from an engine. Neither
makes an optimizer step; each adds its gradients to its model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from release.benchmarks.learner.rollouts import Rollouts, make_config
from rllib_arpo.core.packing import PackedTree
from rllib_arpo.learner.passes import cut_into_pieces, group_into_passes, pass_to_tensors

if TYPE_CHECKING:
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

#: Tokens in a pass of either side.
MAX_TOKENS_PER_PASS = 4096
_TOKENS = gym.spaces.Box(0, 2**31 - 1, (1,), np.int32)


def build_learner(folder: str, dtype: str = "float32", num_gpus: int = 0) -> ARPOTorchLearner:
    config = make_config(folder, dtype).learners(num_learners=0, num_gpus_per_learner=num_gpus)
    return config.build_learner(spaces={DEFAULT_MODULE_ID: (_TOKENS, _TOKENS)})


class LearnerSide:
    """Runs our learner from packed trees to gradients; a call makes all passes.

    With the rollouts' `trees` it works like training. With their `paths`, which are trees with one chain, the same
    kernels compute every trajectory, packed without padding and without sharing.
    """

    def __init__(
        self, learner: ARPOTorchLearner, packed: Sequence[PackedTree], scalars: dict[str, float], max_tokens: int
    ) -> None:
        self._learner, self._scalars = learner, scalars
        self.passes = group_into_passes(cut_into_pieces(dict(enumerate(packed)), max_tokens), max_tokens)

    def __call__(self) -> None:
        for pieces in self.passes:
            batch = {DEFAULT_MODULE_ID: pass_to_tensors(pieces, self.model.device) | self._scalars}
            fwd_out = self._learner.module[DEFAULT_MODULE_ID].forward_train(batch[DEFAULT_MODULE_ID])
            losses = self._learner.compute_losses(fwd_out={DEFAULT_MODULE_ID: fwd_out}, batch=batch)
            losses[DEFAULT_MODULE_ID].backward()

    @property
    def model(self) -> torch.nn.Module:
        return self._learner.module[DEFAULT_MODULE_ID].causal_lm


def take_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Takes the gradients, by parameter name, away from the model."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return gradients


def make_side(name: str, folder: str, rollouts: Rollouts, max_tokens: int = MAX_TOKENS_PER_PASS) -> LearnerSide:
    """The side "ours" or "packed" of a model; each learner is built once.

    Args:
        folder: the model's folder.
        max_tokens: maximum tokens of a pass.
    """
    packed = rollouts.paths if name == "packed" else rollouts.trees
    return LearnerSide(_learner(folder), packed, rollouts.scalars, max_tokens)


_learner = cache(build_learner)
