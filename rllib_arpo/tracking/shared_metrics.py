"""Lets users log metrics next to ARPO's and RLlib's, but not under their names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EVALUATION_RESULTS,
    FAULT_TOLERANCE_STATS,
    LEARNER_RESULTS,
    NUM_TRAINING_STEP_CALLS_PER_ITERATION,
    TIMERS,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.tune.result import AUTO_RESULT_KEYS

from rllib_arpo.envs.errors import ContractError
from rllib_arpo.rollout.metric_table import OWN_NAMES
from rllib_arpo.tracking.console import MESSAGES

#: Names and groups of a result that only ARPO, RLlib and Tune may fill. In `env_runners` these are `OWN_NAMES`.
RESERVED = frozenset(
    {
        EVALUATION_RESULTS,
        FAULT_TOLERANCE_STATS,
        LEARNER_RESULTS,
        MESSAGES,
        NUM_TRAINING_STEP_CALLS_PER_ITERATION,
        TIMERS,
    }
    | {"env_runner_group", "perf", *AUTO_RESULT_KEYS}
)


class SharedMetrics(MetricsLogger):
    """Refuses reserved names while the user's code runs on the driver: RLlib would silently mix both values."""

    _user: str | None = None

    @contextmanager
    def of_user(self, what: str | None) -> Iterator[None]:
        """Within the block `what` logs: "A callback, on_train_result," or a connector; None: ARPO or RLlib."""
        before, self._user = self._user, what
        try:
            yield
        finally:
            self._user = before

    @override(MetricsLogger)
    def log_value(self, key: str | tuple[str, ...], value: Any, **how: Any) -> None:
        self._check(key)
        super().log_value(key, value, **how)

    @override(MetricsLogger)
    def log_time(self, key: str | tuple[str, ...], **how: Any) -> Any:
        self._check(key)
        return super().log_time(key, **how)

    def _check(self, key: str | tuple[str, ...]) -> None:
        if self._user is None:
            return
        group, *names = key.split("/") if isinstance(key, str) else key
        own = group in RESERVED if group != ENV_RUNNER_RESULTS else not names or names[0] in OWN_NAMES
        if own:
            name = "/".join([group, *names])
            raise ContractError(f"{self._user} logs under {name!r}, a name of ARPO's own metrics: choose another name.")
