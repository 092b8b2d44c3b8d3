"""The run that a recipe configures: the sizes of its model, of its learners and of its engines."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rllib_arpo.engine.memory import EngineShape
from rllib_arpo.learner.memory_budget import LearnerShape
from rllib_arpo.learner.run_shapes import engine_shape, learner_shape
from rllib_arpo.policy.llm_rl_module import COMPUTE_DTYPES
from rllib_arpo.policy.model_shape import ModelShape, model_shape

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


@dataclass(frozen=True, slots=True)
class Run:
    """A configured run.

    Attributes:
        name: of the model.
        questions, trajectories: an engine samples so many questions at a time, and of each so many trajectories.
        decision: why `gradient_checkpointing="auto"` is what it is; empty where the configuration says it.
    """

    name: str
    model: ModelShape
    learner: LearnerShape
    engine: EngineShape
    questions: int
    trajectories: int
    decision: str = ""


def load_recipe(path: str) -> ModuleType:
    """The module of a recipe, which has `parser` and `make_config(args)`.

    Raises:
        ValueError: the file is not such a recipe.
    """
    if not Path(path).is_file():
        raise ValueError(f"The recipe {path!r} does not exist.")
    # With a prefix, since a recipe's name may be that of another module.
    spec = importlib.util.spec_from_file_location(f"rllib_arpo_recipe_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"The recipe {path!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    # As an import does: dataclasses and pickle look for the module of a class there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if missing := [name for name in ("parser", "make_config") if not hasattr(module, name)]:
        raise ValueError(f"The recipe {path!r} has no {missing[0]!r}.")
    if len(inspect.signature(module.make_config).parameters) != 1:
        raise ValueError(f"The recipe {path!r} chooses its own model: give a recipe that takes --model.")
    return module


def parse_arguments(recipe: ModuleType, argv: Sequence[str], gpu_memory_gb: float | None) -> argparse.Namespace:
    """The recipe's arguments; the doctor's own `--gpu-memory-gb` may be among them."""
    parser: argparse.ArgumentParser = recipe.parser
    parser.prog = f"rllib-arpo doctor {Path(str(recipe.__file__)).name}"
    parser.add_argument("--gpu-memory-gb", type=float, default=gpu_memory_gb, help="GB (10^9 bytes) of each GPU")
    return parser.parse_args(argv)


def read_run(config: ARPOConfig) -> Run:
    """Reads the sizes of a run from its configuration and from that of its model; no weights are loaded.

    Raises:
        ValueError: the engine is not vLLM, or the model does not exist or cannot be trained.
        ImportError: the configuration has a LoRA, and PEFT is not installed.
    """
    if config.engine != "vllm" or config.dtype not in COMPUTE_DTYPES or config.dtype == "float64":
        raise ValueError(f"engine={config.engine!r} with dtype={config.dtype!r}: only vLLM's memory can be computed.")
    return Run(
        name=str(config.model_name_or_path),
        model=model_shape(str(config.model_name_or_path), config.lora),
        learner=learner_shape(config),
        engine=engine_shape(config),
        questions=config.num_envs_per_env_runner,
        trajectories=config.num_rollouts,
    )
