"""Whether learners compute their layers again in the backward pass: only where the activations would not fit.

The memory is that of the learner's GPU, or of its machine, as the doctor counts it: with the learners and engines that
share it, except for engines that sleep during the update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from rllib_arpo.engine.memory import EngineShape, engine_need
from rllib_arpo.learner.memory_budget import LearnerShape, learner_need
from rllib_arpo.learner.placement import cpu_group, gpu_groups, needed_in_update
from rllib_arpo.learner.run_shapes import engine_shape, learner_shape
from rllib_arpo.policy.model_shape import ModelShape, model_shape

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

#: The part of the memory that activations may fill up to: more than the budget's own spare, since a run that turns out
#: not to fit ends, and one that computes its layers again is slower by a forward pass.
FILLED = 0.8


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for `gradient_checkpointing="auto"`; `needed` of `memory` bytes are filled if activations are kept."""

    checkpointing: bool
    needed: int
    memory: int

    def __str__(self) -> str:
        return (
            f"gradient_checkpointing='auto' is {self.checkpointing}: with all activations the device would hold "
            f"{self.needed:,} of {self.memory:,} bytes in an update; it may hold {FILLED:.0%}."
        )


def decide_checkpointing(model: ModelShape, learner: LearnerShape, engine: EngineShape, memory: int) -> Decision:
    """Args: `memory`: bytes of each GPU that a learner uses, or of its machine if it has none."""
    groups = gpu_groups(learner, engine) if learner.gpus else [cpu_group(learner, engine)]
    need = learner_need(model, replace(learner, checkpointing=False))
    of_engine = engine_need(model, engine, memory)
    needed = max(needed_in_update(group, need, of_engine, engine.sleeps) for group in groups if group.learners)
    return Decision(needed > FILLED * memory, needed, memory)


def decide_here(config: AlgorithmConfig, device: torch.device, compiled: bool) -> Decision:
    """The decision for a learner of this process; `compiled`: its layers are."""
    from ray._common.utils import get_system_memory

    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else get_system_memory()
    learner = replace(learner_shape(config), compiled=compiled)
    model = model_shape(str(config.model_name_or_path), config.lora)
    return decide_checkpointing(model, learner, engine_shape(config), memory)
