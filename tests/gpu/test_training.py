"""The whole algorithm in bf16 on a GPU that engine and learner share: iterations, a checkpoint, and its restoration."""

from typing import Any

import numpy as np
import pytest
import torch

from release.benchmarks.common.bench import timed
from release.benchmarks.learner.rollouts import make_rollouts
from rllib_arpo.arpo import ARPO
from tests.gpu.flops import model_flops
from tests.gpu.workbench import Figures, Sizes, random_qwen3
from tests.helpers.configs import small_config
from tests.helpers.weights import engine_log_probs, learner_log_probs, learner_weights

#: Mean differences of log-probs in bf16 between engine and learner, nats.
ENGINE_GAP = 0.1


def gap(result: dict[str, Any]) -> float:
    return float(result["learners"]["default_policy"]["engine_logprob_gap"])


def probe_gap(algorithm: ARPO) -> float:
    (computed,) = engine_log_probs(algorithm)
    return float(np.abs(computed - learner_log_probs(algorithm)).mean())


def test_iterations_and_a_checkpoint(own_ray, sizes, work, figures, tmp_path):
    config = sizes.config(random_qwen3(sizes.small, work))
    if torch.cuda.is_available():
        config.env_runners(num_env_runners=1, num_gpus_per_env_runner=0.5)
        config.learners(num_learners=0, num_gpus_per_learner=0.5).language_model(sleep_level=2)
    start_s, algorithm = timed(config.build_algo)
    try:
        figures.add("start of engine and learner", start_s, "s")
        before = learner_weights(algorithm)
        results = [algorithm.train() for _ in range(sizes.iterations)]
        add_iterations(algorithm, results[1:], sizes, figures)
        weights = learner_weights(algorithm)
        moved = max(float(np.abs(weights[name] - value).max()) for name, value in before.items())
        figures.add("largest change of a weight", moved, at_least=1e-7)
        figures.add("engine against learner, same tokens", probe_gap(algorithm), "nats", at_most=ENGINE_GAP)
        figures.add("checkpoint written", timed(algorithm.save_to_path, str(tmp_path / "checkpoint"))[0], "s")
    finally:
        algorithm.stop()

    seconds, restored = timed(ARPO.from_checkpoint, str(tmp_path / "checkpoint"))
    try:
        figures.add("restored, with a new engine", seconds, "s")
        for name, value in learner_weights(restored).items():
            np.testing.assert_array_equal(value, weights[name])
        figures.add("restored engine against learner", probe_gap(restored), "nats", at_most=ENGINE_GAP)
        figures.add("the next iteration", gap(restored.train()), "nats", at_most=ENGINE_GAP)
        assert restored.iteration == sizes.iterations + 1
    finally:
        restored.stop()


def add_iterations(algorithm: ARPO, results: list[dict[str, Any]], sizes: Sizes, figures: Figures) -> None:
    """Args: `results`: of the iterations that count."""

    def mean(group: str, name: str) -> float:
        return float(np.mean([result[group][name] for result in results]))

    seconds = {part: mean("timers", part) for part in ("rollout", "update", "sync")}
    for part, value in seconds.items():
        figures.add(f"an iteration: {part}", value, "s")
    figures.add("generated tokens", mean("env_runners", "generated_tokens") / seconds["rollout"], "tokens/s")
    trees = make_rollouts([sampled.tree for sampled in algorithm.last_sampled]).trees
    flops = model_flops(algorithm.get_module().causal_lm, trees)
    figures.add("MFU of the update, engine's sleep included", flops / seconds["update"] / max(sizes.peaks().values()))
    figures.add("engine's log-probs against the learner's", np.mean([*map(gap, results)]), "nats", at_most=ENGINE_GAP)
    figures.add("forks a question", mean("env_runners", "forks_per_question"), at_least=1)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_engine_sleeps_beside_a_learner_in_a_process_of_its_own(own_ray, model_folder, level):
    config = small_config(model_folder, engine="vllm", gpu_memory_utilization=0.3, kv_cache_memory_bytes=256 << 20)
    config.environment("Parity-v0", env_config={"num_turns": 2}).language_model(sleep_level=level)
    config.env_runners(num_env_runners=1, num_gpus_per_env_runner=0.5)
    config.learners(num_learners=1, num_gpus_per_learner=0.5)
    algorithm = config.build_algo()
    try:
        for _ in range(2):
            assert gap(algorithm.train()) < 5e-3
    finally:
        algorithm.stop()
