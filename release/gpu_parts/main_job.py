"""The recipe of `make train` on one GPU to its stop reward, or where SmolLM2 is missing its small twin to its accuracy.

Engine and learner share the GPU; all else is the recipe's (`tuned_examples`).
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from release.benchmarks.common.bench import num_cores, timed
from release.benchmarks.end_to_end.our_side import evaluate, iterate
from release.benchmarks.end_to_end.task_file import SIZES, make_config, make_model
from release.gpu_parts.algorithm import ray_running
from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes
from tuned_examples.smollm2 import PACKAGE


@dataclass(frozen=True, slots=True)
class Goal:
    """A recipe and what it has to reach.

    Attributes:
        size: of the recipe, in `SIZES`.
        reward: mean of an iteration, which ends the run; None: it goes on.
        accuracy: on the held-out questions at the end; None: any.
        num_iterations: at most.
    """

    size: str
    reward: float | None
    accuracy: float | None
    num_iterations: int


SMOLLM2 = Goal("full", reward=0.95, accuracy=0.9, num_iterations=16)
#: As in tests/tuned_examples/test_nightly.py.
SMALL = Goal("quick", reward=None, accuracy=0.7, num_iterations=24)
TINY = Goal("tiny", reward=None, accuracy=None, num_iterations=2)


def run(sizes: Sizes, report: Report, work: Path) -> None:
    goal = TINY if sizes.is_tiny else SMOLLM2
    if goal is SMOLLM2 and not has_smollm2():
        report.skip("SmolLM2-135M", f"needs the package {PACKAGE}, which is not installed; its small twin is trained")
        goal = SMALL
    cold_start_s, model = timed(make_model, goal.size, work / "models")
    report.add(f"cold start of {Path(model).name}, if it is not there yet", cold_start_s, "s")
    config = make_config(_request(goal, model))
    with ray_running():
        algorithm = config.build_algo()
        try:
            _train(algorithm, goal, report)
        finally:
            algorithm.stop()


def has_smollm2() -> bool:
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _request(goal: Goal, model: str) -> dict[str, Any]:
    """What `release/benchmarks/end_to_end` asks our side for."""
    size = replace(SIZES[goal.size], num_iterations=goal.num_iterations)
    gpu = torch.cuda.is_available()
    return {**asdict(size), "side": "arpo", "model": model, "seed": 0, "gpu": gpu, "num_threads": num_cores()}


def _train(algorithm: Any, goal: Goal, report: Report) -> None:
    report.add("held-out accuracy before training", evaluate(algorithm, [])["accuracy"])
    rows: list[dict[str, float]] = []
    while len(rows) < goal.num_iterations and not (rows and goal.reward and rows[-1]["reward"] >= goal.reward):
        rows.append(iterate(algorithm))
    reward, detail = rows[-1]["reward"], {"iterations": rows}
    report.add("mean reward of the last iteration", reward, at_least=goal.reward, detail=detail)
    report.add("iterations", len(rows))
    accuracy = evaluate(algorithm, rows)["accuracy"]
    report.add("held-out accuracy at the end", accuracy, at_least=goal.accuracy)
    later = rows[1:] or rows
    for name in ("seconds", "sampling_s", "update_s", "sync_s"):
        report.add(f"an iteration: {name}", sum(row[name] for row in later) / len(later), "s")
    tokens, seconds = (sum(row[name] for row in later) for name in ("generated_tokens", "sampling_s"))
    report.add("generated tokens", tokens / seconds, "tokens/s")
