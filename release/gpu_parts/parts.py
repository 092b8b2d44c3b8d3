"""The parts of the check, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes

#: Seconds after which a part is asked to end; it gets `release.processes.GRACE_S` for that.
LIMIT_S = 500.0


@dataclass(frozen=True, slots=True)
class Part:
    """A function `(sizes, report, work)`; `work` is the folder that all parts share, which has their models.

    Attributes:
        function: "module:name", the module below `release.gpu_parts`.
        about: what it measures.
        estimate_s: how long it may take on one GPU; nothing has been measured yet.
    """

    name: str
    function: str
    about: str
    estimate_s: float

    def load(self) -> Callable[[Sizes, Report, Path], None]:
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"release.gpu_parts.{module}"), name)


PARTS = (
    Part("machine", "machine:run", "versions and devices, the peak of bf16 products", 20),
    Part("attention", "attention:run", "each kernel of tree attention: gradients against dense attention, speed", 60),
    Part("update", "update:run", "updates of a 1.5B model: tokens/s, MFU, trees against packing", 150),
    Part("distributed", "distributed:run", "NCCL and FSDP2 with one rank, and with two where there are two GPUs", 45),
    Part("probes", "probes:run", "the engine's log-probs, entropies and weights in bf16, against transformers", 60),
    Part("rollout", "rollout:run", "256 sequences against vllm.LLM; what entropies and forks cost", 120),
    Part("weights", "weights:run", "seconds in which an engine gets a 0.5B model's weights, by each transport", 75),
    Part("training", "training:run", "the whole algorithm in bf16 on a shared GPU: iterations, a checkpoint", 90),
    Part("engine_tests", "device_tests:engine", "the files of tests/gpu about engines", 300),
    Part("learner_tests", "device_tests:learner", "the files of tests/gpu about learners and training", 220),
    Part("main_job", "main_job:run", "the recipe of `make train` to its stop reward", 150),
    Part("against_trl", "against_trl:run", "whole iterations against TRL, where it is installed", 150),
)
NAMES = tuple(part.name for part in PARTS)
