"""Forward and backward of the same rollouts three ways: our learner's, packed without sharing, padded.

All three compute the same loss: ARPO's defaults with `importance_cap=None`, so that the engine's log-probs are in none
of them. None makes an optimizer step. Each adds its gradients to those of its own model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from ray.rllib.core import DEFAULT_MODULE_ID

from release.benchmarks.learner.rollouts import Path, Rollouts, make_config
from rllib_arpo.core.columns import DENOMINATOR
from rllib_arpo.core.packing import PackedTree
from rllib_arpo.learner.passes import cut_into_pieces, group_into_passes, pass_to_tensors

if TYPE_CHECKING:
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

#: Tokens of a pass, on our side and on that of the packed trajectories; also the most positions of a padded
#: micro-batch.
MAX_TOKENS_PER_PASS = 4096
_TOKENS = gym.spaces.Box(0, 2**31 - 1, (1,), np.int32)


def build_learner(
    folder: str, dtype: str = "float32", num_gpus: int = 0, learner_compile: str = "auto"
) -> ARPOTorchLearner:
    config = (
        make_config(folder, dtype)
        .training(learner_compile=learner_compile)
        .learners(num_learners=0, num_gpus_per_learner=num_gpus)
    )
    return config.build_learner(spaces={DEFAULT_MODULE_ID: (_TOKENS, _TOKENS)})


class LearnerSide:
    """Our learner's way from packed trees to gradients; a call makes all passes.

    With the rollouts' `trees` it is what is trained; with their `paths`, each a tree of one chain, it is padding-free
    packing of every trajectory by the same kernels, without sharing.
    """

    def __init__(
        self, learner: ARPOTorchLearner, packed: Sequence[PackedTree], scalars: dict[str, float], max_tokens: int
    ) -> None:
        self._learner, self._scalars = learner, scalars
        self.passes = group_into_passes(cut_into_pieces(packed, max_tokens), max_tokens)

    def __call__(self) -> None:
        for pieces in self.passes:
            batch = {DEFAULT_MODULE_ID: pass_to_tensors(pieces, self.model.device) | self._scalars}
            fwd_out = self._learner.module[DEFAULT_MODULE_ID].forward_train(batch[DEFAULT_MODULE_ID])
            losses = self._learner.compute_losses(fwd_out={DEFAULT_MODULE_ID: fwd_out}, batch=batch)
            losses[DEFAULT_MODULE_ID].backward()

    @property
    def model(self) -> torch.nn.Module:
        return self._learner.module[DEFAULT_MODULE_ID].causal_lm


class PaddedSide:
    """Hugging Face's model on right-padded trajectories, at temperature 1; a call goes through all micro-batches.

    Every row has the length of the longest of all. The model returns the logits [m, L, V] of every position; the
    log-probs come from `cross_entropy`, which holds a second array of that size. It computes no entropies.

    Args:
        model: of transformers.
        rollouts: the trajectories.
        max_positions: of a micro-batch.
    """

    def __init__(self, model: torch.nn.Module, rollouts: Rollouts, max_positions: int) -> None:
        config = make_config()
        self.model, self._denominator = model, rollouts.scalars[DENOMINATOR]
        self._clip = (1 - config.clip_low, 1 + config.clip_high)
        self._columns = _padded_columns(rollouts.paths)
        num_rows, length = self._columns["token_ids"].shape
        rows = max(1, max_positions // length)
        self._micro_batches = [slice(start, start + rows) for start in range(0, num_rows, rows)]

    def __call__(self) -> None:
        for rows in self._micro_batches:
            self._loss({name: column[rows] for name, column in self._columns.items()}).backward()

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch["labels"]
        logits = self.model(
            input_ids=batch["token_ids"],
            attention_mask=batch["attention_mask"],
            position_ids=batch["position_ids"],
            use_cache=False,
        ).logits
        log_probs = -F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        del logits
        ratio = (log_probs - log_probs.detach()).exp()
        advantage = batch["advantage"][:, None]
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(*self._clip) * advantage)
        return -(batch["weight"][:, None] * (labels != -100) * surrogate).sum() / self._denominator


def _padded_columns(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """[M, L] `token_ids`, `attention_mask`, `position_ids` and `labels` (the next token, or -100); [M] A and w."""
    length = max(path.packed.num_tokens for path in paths)
    ids, mask = np.zeros((2, len(paths), length), np.int64)
    labels = np.full_like(ids, -100)
    for row, path in enumerate(paths):
        packed = path.packed
        ids[row, : packed.num_tokens], mask[row, : packed.num_tokens] = packed.token_ids, 1
        targets = np.flatnonzero(packed.loss_mask)
        labels[row, targets - 1] = packed.token_ids[targets]
    return {
        "token_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "position_ids": torch.arange(length).expand(len(paths), length),
        "labels": torch.from_numpy(labels),
        "advantage": torch.tensor([path.advantage for path in paths]),
        "weight": torch.tensor([path.weight for path in paths]),
    }


def take_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients by parameter name; the model has none afterwards."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return gradients


def make_side(
    name: str, folder: str, rollouts: Rollouts, max_tokens: int = MAX_TOKENS_PER_PASS
) -> LearnerSide | PaddedSide:
    """The side "ours", "compiled", "packed" or "padded" of a model; each model is loaded once.

    Args:
        folder: of the model.
        max_tokens: of a pass of all sides but the padded one, and positions of a padded micro-batch.
    """
    if name == "padded":
        return PaddedSide(_padded_model(folder), rollouts, max_tokens)
    packed = [path.packed for path in rollouts.paths] if name == "packed" else rollouts.trees
    learner = _learner(folder, learner_compile="layers") if name == "compiled" else _learner(folder)
    return LearnerSide(learner, packed, rollouts.scalars, max_tokens)


_learner = cache(build_learner)


@cache
def _padded_model(folder: str) -> torch.nn.Module:
    """The model as transformers computes it, with its own sdpa attention, fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
