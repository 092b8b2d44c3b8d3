"""Makes the file that tells both sides what to do: the tuned example's settings and its questions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_arpo.tracking.machine import num_cores

if TYPE_CHECKING:
    from rllib_arpo import ARPOConfig

#: Settings of our configuration that TRL also has.
SHARED = (
    "questions_per_batch", "num_rollouts", "max_tool_calls", "max_turn_tokens", "max_response_tokens", "temperature",
    "lr", "grad_clip", "adam_betas", "weight_decay", "clip_low", "clip_high",
)  # fmt: skip
TRL = "trl"
#: A side of ours -> RLlib's name of the algorithm.
ALGORITHMS = {"grpo": "GRPO", "arpo": "ARPO"}
SIDES = (TRL, *ALGORITHMS)


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the benchmark: a recipe (a module of `tuned_examples`) and the length of its runs.

    Attributes:
        num_iterations: iterations of a run; the first does not count.
        num_held_out: questions in an evaluation of our side.
    """

    recipe: str
    num_iterations: int
    num_held_out: int


SIZES = {
    "full": Size("trails_smollm2_135m_arpo", num_iterations=4, num_held_out=64),
    "quick": Size("trails_small_arpo", num_iterations=9, num_held_out=64),
    "tiny": Size("trails_small_arpo", num_iterations=2, num_held_out=4),
}


def make_model(size: str, scratch: Path) -> str:
    """The folder of a size's cold-started model. It is made once and kept in the cache folder, except the tiny one."""
    from tuned_examples.small_models import ColdStart, SmallModel
    from tuned_examples.trails_models import cold_started_smollm2, small_model

    if size == "full":
        return cold_started_smollm2()
    if size == "quick":
        return small_model()
    stage = ColdStart("imperfect", count=64, epochs=1, batch_size=8, lr=3e-3)
    tiny = SmallModel(hidden_size=64, num_layers=1, num_heads=2, num_backward_heads=1, stages=(stage,))
    return small_model(tiny, scratch)


def make_request(
    size: Size, side: str, model: str, seed: int, *, gpu: bool = False, vllm: bool = False
) -> dict[str, Any]:
    """The input of a side's process.

    Args:
        model: the model's folder.
        seed: the seed for the order of the questions and for sampling.
        gpu: whether the side has a GPU.
        vllm: whether TRL samples with vLLM.
    """
    from rllib_arpo.envs.tasks.trails import TrailsTask

    request = {
        **asdict(size), "side": side, "model": model, "seed": seed, "gpu": gpu, "num_threads": num_cores(),
        "vllm": vllm, "search_command": [sys.executable, "-m", "release.benchmarks.end_to_end.search_process"],
    }  # fmt: skip
    config, train = make_config(request), TrailsTask(seed=seed)
    questions = [train.question(number) for number in range(size.num_iterations * config.questions_per_batch)]
    return request | {
        "settings": {name: getattr(config, name) for name in SHARED},
        "questions": [
            {"prompt": [{"role": role, "content": text} for role, text in one.messages], "answer": one.answers[0]}
            for one in questions
        ],
    }


def make_config(request: Mapping[str, Any]) -> ARPOConfig:
    """The recipe's configuration for our side (for TRL's side GRPO's), without callbacks and automatic evaluation."""
    from rllib_arpo.recipes.gpus import use_gpus

    recipe = importlib.import_module(f"tuned_examples.{request['recipe']}")
    algorithm = ALGORITHMS.get(request["side"], "GRPO")
    args = recipe.parser.parse_args(["--algo", algorithm, "--seed", str(request["seed"])])
    config = recipe.make_config(request["model"], args).callbacks([])
    config.language_model(engine_num_threads=request["num_threads"])
    config.training(learner_num_threads=request["num_threads"])
    config.evaluation(evaluation_interval=None, evaluation_duration=request["num_held_out"])
    config.reporting(show_progress=False).debugging(log_level="ERROR")
    if request["gpu"]:
        config.language_model(dtype="bfloat16")
        use_gpus(config, num_gpus=1)
    return config
