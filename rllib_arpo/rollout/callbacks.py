"""Calls RLlib's callbacks on an env runner, and keeps the metrics that they log."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.utils import make_callback
from ray.rllib.env.env_context import EnvContext
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.rollout.messages import Purpose, SampledQuestion
from rllib_arpo.rollout.metric_table import OWN_NAMES

if TYPE_CHECKING:
    from ray.rllib.env.env_runner import EnvRunner

    from rllib_arpo.envs.forkable_env import ForkableMultiAgentEnv


class RunnerCallbacks:
    """Calls the user's callbacks. Questions end in the rollout thread, so a lock guards the logged metrics.

    Every method raises `ContractError`, which ends the run, if a callback raises or logs under one of ARPO's names.
    """

    def __init__(self, runner: EnvRunner, own_purpose: Purpose):
        self._runner = runner
        self._lock = threading.RLock()
        # Metrics of an evaluation on a training runner must stay apart from the training metrics.
        lookup = runner.config.stats_cls_lookup
        self._loggers = {purpose: MetricsLogger(stats_cls_lookup=lookup) for purpose in Purpose}
        self._loggers[own_purpose] = runner.metrics

    def environment_created(self, env: ForkableMultiAgentEnv, context: EnvContext, purpose: Purpose) -> None:
        self._call("on_environment_created", purpose, env=env, env_context=context)

    def episode_ended(self, question: SampledQuestion, env: ForkableMultiAgentEnv, env_index: int) -> None:
        """Call it before `env`, number `env_index` of its pool, gets the next question."""
        self._call(
            "on_episode_end",
            question.ref.purpose,
            episode=question.episode,
            env=env,
            env_index=env_index,
            rl_module=None,
        )
        question.episode.take_edits("A callback, on_episode_end,")

    def sampled(self, questions: Sequence[SampledQuestion]) -> None:
        """Calls `on_sample_end` with these questions, once per purpose."""
        for purpose in Purpose:
            if episodes := [question.episode for question in questions if question.ref.purpose == purpose]:
                self._call("on_sample_end", purpose, samples=episodes)
                for episode in episodes:
                    episode.take_edits("A callback, on_sample_end,")

    def take_metrics(self, purposes: Iterable[Purpose]) -> dict[Purpose, dict[str, Any]]:
        """The metrics logged for these purposes since the last call: purpose -> state of a `MetricsLogger`."""
        with self._lock:
            return {purpose: self._loggers[purpose].reduce() for purpose in purposes}

    def _call(self, name: str, purpose: Purpose, **kwargs: Any) -> None:
        runner, metrics = self._runner, self._loggers[purpose]
        with self._lock:
            try:
                make_callback(
                    name,
                    callbacks_objects=runner._callbacks,
                    callbacks_functions=getattr(runner.config, f"callbacks_{name}"),
                    kwargs={"env_runner": runner, "metrics_logger": metrics, **kwargs},
                )
            except Exception as error:
                kind = type(error).__name__
                raise ContractError(f"A callback, {name}, raised {kind}: {first_line(error)}.") from error
            if taken := sorted(OWN_NAMES.intersection(key.split("/")[0] for key in metrics.stats)):
                raise ContractError(
                    f"A callback, {name}, logs under {taken[0]!r}, a name of ARPO's own metrics: choose another name."
                )
