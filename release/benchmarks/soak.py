"""Measures the growth of a run's processes over 300 iterations: the driver, an env runner with vLLM, and a learner.

    python -m release.benchmarks.soak --json soak.json     # a tiny model; about ten minutes on two cores
    python -m release.benchmarks.soak --json soak.json --quick     # 90 iterations

A figure is a slope of the private memory (RssAnon), fitted to the first or the last third of the iterations. The detail
has what each process held, and what it still held once malloc had given its free pages back.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune

from release.benchmarks.common import runner
from release.benchmarks.common.bench import Bench, rounded
from release.benchmarks.common.endless_models import endless_llama
from release.benchmarks.common.runner import Benchmark
from tests.helpers.configs import small_config
from tests.helpers.parity_env import ParityEnv

DRIVER, ENV_RUNNER, LEARNER = PROCESSES = "driver", "env_runner", "learner"
#: Iterations from one measurement to the next, and those at the start, in which engine and kernels warm up.
STEP, WARM_UP = 3, 3


def soak(bench: Bench) -> dict[str, Any]:
    """KiB an iteration that each process grows."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    tune.register_env("Parity-v0", ParityEnv)
    # The environment's prompts have the question's number as a token.
    model = endless_llama(bench.scratch / "model", hidden_size=64, num_layers=2, vocab_size=1024)
    config = small_config(model, "vllm", kv_cache_memory_bytes=16 << 20, block_size=32)
    config.environment("Parity-v0", env_config={"num_turns": 3}).adaptive_rollout(branching="always")
    config.training(lr=1e-5).env_runners(num_env_runners=1).learners(num_learners=1)
    algorithm = config.build_algo()
    try:
        for _ in range(WARM_UP):
            algorithm.train()
        (env_runner,) = algorithm.env_runner_group.foreach_env_runner(_pid, local_env_runner=False)
        (learner,) = (answer.get() for answer in algorithm.learner_group.foreach_learner(_pid))
        pids = dict(zip(PROCESSES, (os.getpid(), env_runner, learner), strict=True))
        iterations = list(range(0, bench.pick(full=300, quick=90, tiny=18) + 1, STEP))
        held: dict[str, list[float]] = {name: [_private_kib(pid)] for name, pid in pids.items()}
        for done in iterations[1:]:
            for _ in range(STEP):
                algorithm.train()
            for name, pid in pids.items():
                held[name].append(_private_kib(pid))
            print(done, {name: held[name][-1] for name in PROCESSES}, flush=True)
        _trim()
        algorithm.env_runner_group.foreach_env_runner(_trim, local_env_runner=False)
        algorithm.learner_group.foreach_learner(_trim)
        trimmed = {name: _private_kib(pid) for name, pid in pids.items()}
    finally:
        algorithm.stop()
        ray.shutdown()
    third = len(iterations) // 3
    figures: dict[str, Any] = {}
    for name in PROCESSES:
        mib = {"held_mib": rounded(np.array(held[name]) / 1024, 2), "trimmed_mib": round(trimmed[name] / 1024, 2)}
        for part, chosen in (("first", slice(third + 1)), ("last", slice(-third - 1, None))):
            key = f"{name}_{part}_kib"
            figures[key] = float(np.polyfit(iterations[chosen], held[name][chosen], 1)[0])
            figures[f"{key}_detail"] = {"iterations": [iterations[chosen][0], iterations[chosen][-1]], **mib}
    return figures


def _pid(*_args: object, **_kwargs: object) -> int:
    return os.getpid()


def _trim(*_args: object, **_kwargs: object) -> None:
    ctypes.CDLL(None).malloc_trim(0)


def _private_kib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


TARGETS = {
    f"{name}_{part}_kib": "< 50" if part == "last" else "reported" for name in PROCESSES for part in ("first", "last")
}
BENCHMARKS = (Benchmark(soak, TARGETS),)


def main(arguments: list[str] | None = None) -> int:
    return runner.main("soak", BENCHMARKS, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
