"""Runs this package's side: GRPO or ARPO through `ARPOConfig`, with the tuned example's configuration.

python -m release.benchmarks.end_to_end.our_side REQUEST.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.benchmarks.end_to_end.task_file import make_config
from rllib_arpo.tracking.machine import versions


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Trains as the request says.

    Returns:
        start_s: seconds until the algorithm and its engines are built.
        iterations: for each one the wall `seconds`, with their parts `sampling_s`, `update_s` and `sync_s`;
            `generated_tokens` and executed `tool_calls`; mean `reward` and `accuracy` of the trajectories.
        versions, threads, setting.
    """
    begin = time.perf_counter()
    config = make_config(request)
    algorithm = config.build_algo()
    start_s = time.perf_counter() - begin
    try:
        iterations = [iterate(algorithm) for _ in range(request["num_iterations"])]
    finally:
        algorithm.stop()
    return {
        "start_s": start_s,
        "iterations": iterations,
        "versions": versions(),
        "threads": config.learner_num_threads,
        "setting": {"algorithm": request["side"], "dtype": config.dtype},
    }


def iterate(algorithm) -> dict[str, float]:
    """Trains one iteration; returns its entry in `run`."""
    begin = time.perf_counter()
    result = algorithm.train()
    seconds = time.perf_counter() - begin
    rollout, timers = result["env_runners"], result["timers"]
    row = {
        "seconds": seconds,
        "sampling_s": timers["rollout"],
        "update_s": timers["update"],
        "sync_s": timers["sync"],
        "generated_tokens": rollout["generated_tokens"],
        "tool_calls": rollout["tool_calls_executed"],
        "reward": rollout["episode_return_mean"],
        "accuracy": rollout["accuracy"],
    }
    row = {name: float(value) for name, value in row.items()}
    print(json.dumps(row), flush=True)
    return row


def evaluate(algorithm) -> float:
    """The greedy accuracy on the held-out questions."""
    accuracy = float(algorithm.evaluate()["env_runners"]["accuracy"])
    print(f"accuracy {accuracy}", flush=True)
    return accuracy


def main(request: str, result: str) -> None:
    import ray

    try:
        done = run(json.loads(Path(request).read_text()))
    finally:
        ray.shutdown()
    Path(result).write_text(json.dumps(done, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
