"""Training with `max_weight_lag=1` against strictly on-policy training, on arithmetic with slow tools."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
from ray import tune

from release.benchmarks.common.bench import Bench, median, num_cores, rounded, timed
from rllib_arpo import ARPOConfig
from rllib_arpo.envs.forkable_env import INFO_STEP
from rllib_arpo.envs.registry import with_task
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.policy.dtypes import fast_dtype
from tuned_examples.smollm2 import smollm2_135m_instruct

KEY = "lag1_speedup"
ENV = "SlowToolMath-v0"
LAGS = (0, 1)
ITERATIONS, SEEDS = 10, (0, 1, 2)
#: Iterations at the start that are not timed (the first rollout overlaps with nothing), and those at the end whose
#: mean reward is the final one.
UNTIMED, FINAL = 1, 4
TOOL_LATENCY_S = 8.0


class SlowToolEnv(ToolEnv):
    """Arithmetic with Python, whose answers take `TOOL_LATENCY_S` seconds longer."""

    async def step_agent(self, agent_id: str, token_ids: np.ndarray):
        result = await super().step_agent(agent_id, token_ids)
        if result[-1][INFO_STEP].tool_call is not None:
            await asyncio.sleep(TOOL_LATENCY_S)
        return result


def slow_tool_env(env_config: Mapping[str, Any]) -> SlowToolEnv:
    return SlowToolEnv(with_task("ToolMath-v0", env_config))


def weight_lag(bench: Bench) -> dict[str, Any]:
    """Iterations per hour with lag 1 / those with lag 0, and the final rewards of both."""
    tune.register_env(ENV, slow_tool_env)
    ray.init(num_cpus=num_cores(), include_dashboard=False, log_to_driver=False)
    try:
        # One after the other, in turn: a run needs both cores.
        runs = [{lag: train(lag, seed) for lag in LAGS} for seed in SEEDS]
    finally:
        ray.shutdown()
    speedups = [run[1]["iterations_per_hour"] / run[0]["iterations_per_hour"] for run in runs]
    of = lambda name, lag: rounded([run[lag][name] for run in runs])  # noqa: E731
    final = {lag: [run[lag]["final_reward"] for run in runs] for lag in LAGS}
    detail = {
        "sides": ["iterations_per_hour_lag_1", "iterations_per_hour_lag_0"],
        **{f"iterations_per_hour_lag_{lag}": of("iterations_per_hour", lag) for lag in LAGS},
        "speedups": rounded(speedups),
        **{f"final_reward_lag_{lag}": rounded(final[lag]) for lag in LAGS},
        "final_reward_difference": round(float(np.mean(final[1]) - np.mean(final[0])), 4),
        "final_reward_std_over_seeds": {lag: round(float(np.std(final[lag], ddof=1)), 4) for lag in LAGS},
        "rewards": {lag: [rounded(run[lag]["rewards"]) for run in runs] for lag in LAGS},
        "seconds_per_iteration": {lag: [rounded(run[lag]["seconds"], 1) for run in runs] for lag in LAGS},
        "seeds": list(SEEDS),
        "iterations": ITERATIONS,
        "untimed_iterations": UNTIMED,
        "tool_latency_s": TOOL_LATENCY_S,
        "model": f"SmolLM2-135M-Instruct, {fast_dtype()} compute",
    }
    return {KEY: median(speedups), f"{KEY}_detail": detail}


def make_config(max_weight_lag: int, seed: int) -> ARPOConfig:
    return (
        ARPOConfig()
        .environment(ENV)
        .language_model(
            model_name_or_path=smollm2_135m_instruct(),
            dtype=fast_dtype(),
            max_context_tokens=1024,
            # With a lag the engine runs beside the learner: each side has the threads that suit it.
            engine_num_threads=max(1, num_cores() // 2) if max_weight_lag else num_cores(),
        )
        .adaptive_rollout(
            num_rollouts=6,
            num_initial_rollouts=3,
            entropy_window=8,
            max_response_tokens=512,
            max_turn_tokens=64,
            max_weight_lag=max_weight_lag,
        )
        .training(
            lr=3e-5,
            questions_per_batch=4,
            questions_per_minibatch=4,
            max_tokens_per_pass=4096,
            learner_num_threads=num_cores(),
        )
        .env_runners(num_env_runners=1, num_cpus_per_env_runner=0.5, num_envs_per_env_runner=12)
        .learners(num_learners=0, num_cpus_per_learner=0.5)
        .resources(num_cpus_for_main_process=0.5)
        .debugging(seed=seed, progress_bar="off", log_level="ERROR")
    )


def train(max_weight_lag: int, seed: int) -> dict[str, Any]:
    algorithm = make_config(max_weight_lag, seed).build_algo()
    try:
        timings = [timed(algorithm.train) for _ in range(ITERATIONS)]
    finally:
        algorithm.stop()
        del algorithm
        gc.collect()  # Six models with their Adam states would stay in memory until Python looks.
    seconds = [taken for taken, _ in timings]
    rewards = [float(result["env_runners"]["episode_return_mean"]) for _, result in timings]
    return {
        "iterations_per_hour": 3600 * (ITERATIONS - UNTIMED) / sum(seconds[UNTIMED:]),
        "final_reward": float(np.mean(rewards[-FINAL:])),
        "rewards": rewards,
        "seconds": seconds,
    }
