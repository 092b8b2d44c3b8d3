"""The whole algorithm in bf16: iterations on a GPU that engine and learner share, a checkpoint, and its restoration."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from release.benchmarks.common.bench import timed
from release.benchmarks.learner.flops import model_flops
from release.benchmarks.learner.rollouts import make_rollouts
from release.gpu_parts.algorithm import make_config, ray_running
from release.gpu_parts.machine import bf16_peaks
from release.gpu_parts.models import random_qwen2
from release.gpu_parts.report import Report
from release.gpu_parts.sizes import Sizes
from rllib_arpo.rollout.episodes import episode_to_tree
from tests.helpers.weights import learner_weights

if TYPE_CHECKING:
    from rllib_arpo import ARPOConfig
    from rllib_arpo.arpo import ARPO

#: Mean difference of engine's and learner's log-probs in bf16, nats.
ENGINE_GAP = 0.1


def run(sizes: Sizes, report: Report, work: Path) -> None:
    config = make_config(random_qwen2(sizes.small, work), sizes)
    if torch.cuda.is_available():
        config.env_runners(num_env_runners=1, num_gpus_per_env_runner=0.5)
        config.learners(num_learners=0, num_gpus_per_learner=0.5).language_model(sleep_level=2)
    else:
        report.skip("an engine that sleeps during updates", "needs a CUDA device")
    with ray_running(), tempfile.TemporaryDirectory(dir=work) as checkpoint:
        weights = _train(config, sizes, report, checkpoint)
        _restore(checkpoint, weights, report)


def _train(config: ARPOConfig, sizes: Sizes, report: Report, checkpoint: str) -> dict[str, np.ndarray]:
    """Writes a checkpoint into that folder; returns the weights in it."""
    start_s, algorithm = timed(config.build_algo)
    try:
        report.add("start of engine and learner", start_s, "s")
        before = learner_weights(algorithm)
        results = [algorithm.train() for _ in range(sizes.training.num_iterations)]
        _report_iterations(algorithm, results[1:], sizes, report)
        weights = learner_weights(algorithm)
        moved = max(float(np.abs(weights[name] - value).max()) for name, value in before.items())
        report.add("largest change of a weight in training", moved, at_least=1e-7)
        report.add("checkpoint written", timed(algorithm.save_to_path, checkpoint)[0], "s")
    finally:
        algorithm.stop()
    return weights


def _report_iterations(algorithm: ARPO, results: list[dict[str, Any]], sizes: Sizes, report: Report) -> None:
    """Args: `results`: of the iterations that count."""

    def mean(*keys: str) -> float:
        return float(np.mean([_at(result, *keys) for result in results]))

    seconds = {part: mean("timers", part) for part in ("rollout", "update", "sync")}
    for part, value in seconds.items():
        report.add(f"an iteration: {part}", value, "s")
    tokens = mean("env_runners", "generated_tokens")
    report.add("generated tokens", tokens / seconds["rollout"], "tokens/s", detail={"generated_tokens": tokens})
    trees = make_rollouts([episode_to_tree(sampled.episode) for sampled in algorithm.last_sampled]).trees
    model = algorithm.get_module().causal_lm
    peak = max(bf16_peaks(sizes, model.device.type).values())
    report.add("MFU of the update, engine's sleep included", model_flops(model, trees) / seconds["update"] / peak)
    gap = mean("learners", "default_policy", "engine_logprob_gap")
    report.add("engine's log-probs against the learner's", gap, "nats", at_most=ENGINE_GAP)
    report.add("forks a question", mean("env_runners", "forks_per_question"), at_least=1)


def _at(result: dict[str, Any], *keys: str) -> float:
    for key in keys:
        result = result[key]
    return float(result)


def _restore(checkpoint: str, weights: dict[str, np.ndarray], report: Report) -> None:
    from rllib_arpo import ARPO

    seconds, algorithm = timed(ARPO.from_checkpoint, checkpoint)
    try:
        restored = learner_weights(algorithm)
        difference = max(float(np.abs(restored[name] - value).max()) for name, value in weights.items())
        report.add("largest difference of a restored weight", difference, at_most=0.0)
        report.add("restored, with a new engine", seconds, "s")
        gap = _at(algorithm.train(), "learners", "default_policy", "engine_logprob_gap")
        report.add("engine against learner after the restoration", gap, "nats", at_most=ENGINE_GAP)
    finally:
        algorithm.stop()
