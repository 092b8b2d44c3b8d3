"""Trajectories per second with 1, 2 and 4 env runners whose tools take nine tenths of the critical path."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import tune

from release.benchmarks.common.bench import TINY_LLAMA, Bench, alternate, median, num_cores, rounded, timed
from release.benchmarks.rollout.workload import Workload, WorkloadEnv, our_rollout
from rllib_arpo import ARPO, ARPOConfig

SCALING, DRIVER = "scaling_4", "driver_ms_per_question"
RUNNERS = (1, 2, 4)
ENV = "SleepingTools-v0"
#: Share of the critical path of a trajectory.
TOOL_SHARE = 0.9
QUESTIONS_IN_FLIGHT = 4
WORKLOAD = Workload(
    turn_tokens=16, num_questions=QUESTIONS_IN_FLIGHT, num_trajectories=4, prompt_tokens=32, tool_tokens=8, sigma=0.0
)


class SleepingTools(WorkloadEnv):
    """Questions of `WORKLOAD`, whose tools take `env_config["latency_s"]` seconds."""

    def __init__(self, env_config: Mapping[str, Any]):
        super().__init__(dataclasses.replace(WORKLOAD, median_latency_s=env_config["latency_s"]))


def scaling(bench: Bench) -> dict[str, Any]:
    """(Trajectories per second with 4 env runners) / (4 times those with 1), questions per env runner constant."""
    folder = bench.model(TINY_LLAMA)
    decode_s = _decode_s(bench)
    latency_s = TOOL_SHARE / (1 - TOOL_SHARE) * decode_s / (WORKLOAD.num_turns - 1)
    waves, repeats = bench.pick(full=(4, 5), quick=(2, 2), tiny=(1, 1))
    tune.register_env(ENV, SleepingTools)
    ray.init(num_cpus=num_cores(), include_dashboard=False, log_to_driver=False)
    try:
        with contextlib.ExitStack() as stack:
            algorithms = {}
            for count in RUNNERS:
                algorithms[str(count)] = make_config(folder, count, latency_s).build_algo()
                stack.callback(algorithms[str(count)].stop)
            sides = {name: lambda _, name=name: _sample(algorithms[name], waves) for name in algorithms}
            runs = alternate(sides, repeats)
    finally:
        ray.shutdown()
    return _figures(bench, runs, decode_s, latency_s, waves)


def make_config(folder: str, num_env_runners: int, latency_s: float) -> ARPOConfig:
    return (
        ARPOConfig()
        .environment(ENV, env_config={"latency_s": latency_s})
        .language_model(
            model_name_or_path=folder,
            dtype="float32",
            max_context_tokens=512,
            engine_num_threads=1,
            engine_kwargs={"kv_cache_memory_bytes": 64 << 20},
        )
        .adaptive_rollout(
            num_rollouts=WORKLOAD.num_trajectories,
            num_initial_rollouts=WORKLOAD.num_trajectories,
            branching="never",
            entropy_window=4,
            max_turn_tokens=WORKLOAD.turn_tokens,
            max_response_tokens=400,
        )
        .training(
            questions_per_batch=QUESTIONS_IN_FLIGHT,
            questions_per_minibatch=QUESTIONS_IN_FLIGHT,
            max_tokens_per_pass=4096,
        )
        .env_runners(
            num_env_runners=num_env_runners,
            num_cpus_per_env_runner=0.1,
            num_envs_per_env_runner=QUESTIONS_IN_FLIGHT,
        )
        .learners(num_learners=0, num_cpus_per_learner=0.1)
        .resources(num_cpus_for_main_process=0.1)
        .debugging(seed=0, progress_bar="off", log_level="ERROR")
    )


def _decode_s(bench: Bench) -> float:
    """Seconds in which one engine on one thread decodes what is in flight on an env runner, without tools."""
    handle = bench.engine(TINY_LLAMA, num_threads=1)
    runs = [timed(our_rollout, handle, WORKLOAD, entropy_window=4, deterministic=False)[0] for _ in range(4)]
    bench.close_engines()
    return median(runs[1:])


def _sample(algorithm: ARPO, waves: int) -> dict[str, float]:
    """Samples `waves` times what the env runners hold at once; seconds of wall and of all processes' CPU time."""
    group = algorithm.env_runner_group
    questions = waves * QUESTIONS_IN_FLIGHT * group.num_remote_env_runners()
    runners_before = _runners_cpu_s(group)
    driver_before, thread_before, start = time.process_time(), time.thread_time(), time.perf_counter()
    sampled = algorithm._stream.take(questions, algorithm._conditions())
    wall, driver = time.perf_counter() - start, time.process_time() - driver_before
    thread = time.thread_time() - thread_before
    assert len(sampled) == questions
    return {
        "trajectories_per_s": questions * WORKLOAD.num_trajectories / wall,
        "driver_ms_per_question": 1000 * driver / questions,
        "driver_thread_ms_per_question": 1000 * thread / questions,
        "core_use": (driver + _runners_cpu_s(group) - runners_before) / (wall * num_cores()),
    }


def _runners_cpu_s(group) -> float:
    return sum(group.foreach_env_runner(lambda _: time.process_time(), local_env_runner=False))


def _figures(
    bench: Bench, runs: dict[str, list[dict[str, float]]], decode_s: float, latency_s: float, waves: int
) -> dict[str, Any]:
    def of(name: str, count: int) -> list[float]:
        return [run[name] for run in runs[str(count)]]

    def linear(count: int) -> list[float]:
        pairs = zip(of("trajectories_per_s", count), of("trajectories_per_s", 1), strict=True)
        return [many / (count * one) for many, one in pairs]

    common = {
        "model": bench.model_name(TINY_LLAMA),
        "core_use": {count: round(median(of("core_use", count)), 3) for count in RUNNERS},
        "cores": num_cores(),
        "tool_share_of_critical_path": TOOL_SHARE,
        "decode_s": round(decode_s, 4),
        "latency_s": round(latency_s, 4),
        "questions_per_env_runner": waves * QUESTIONS_IN_FLIGHT,
        "trajectories_per_question": WORKLOAD.num_trajectories,
        "turns": WORKLOAD.num_turns,
        "turn_tokens": WORKLOAD.turn_tokens,
        "repeats": len(runs["1"]),
    }
    speeds = {f"trajectories_per_s_{n}": rounded(of("trajectories_per_s", n)) for n in RUNNERS}
    driver = {f"ms_per_question_{n}": rounded(of("driver_ms_per_question", n)) for n in RUNNERS}
    return {
        SCALING: median(linear(4)),
        f"{SCALING}_detail": {
            "sides": ["trajectories_per_s_4", "trajectories_per_s_1"],
            **speeds,
            "fraction_of_linear": {count: rounded(linear(count)) for count in RUNNERS},
            **common,
        },
        DRIVER: median(of("driver_ms_per_question", 4)),
        f"{DRIVER}_detail": {
            "sides": ["ms_per_question_4", "ms_per_question_1"],
            **driver,
            "own_thread_ms_per_question": {n: rounded(of("driver_thread_ms_per_question", n)) for n in RUNNERS},
            "measured": "CPU time of the driver's process, Ray's threads in it included, while it asks and collects",
            **common,
        },
    }
