"""Keeps the env runners of a group supplied with numbered questions and brings back every one, or the cause."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_arpo.rollout.fault_tolerance import restart_env_runner
from rllib_arpo.rollout.questions import Ask, Rollout, RolloutError, SampledQuestion

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

logger = logging.getLogger("rllib_arpo")

#: So many failures in a row end the run.
MAX_FAILURES_IN_A_ROW = 3
#: Seconds beyond a question's deadline without a finished question after which an env runner is taken for hung.
HANG_SLACK_S = 300.0
#: An env runner answers the driver at once when a question has ended, else after so many seconds: the longest that it
#: keeps another call waiting.
POLL_S = 2.0
#: The same where the next weights are such a call.
POLL_DURING_UPDATE_S = 0.5
#: Seconds after which an env runner that does not answer at all is taken for hung.
ANSWER_TIMEOUT_S = 120.0
#: The env runner in the driver's own process.
LOCAL = 0


class QuestionDispatcher:
    """Shares questions out among the healthy env runners of a group; those lost with one are asked again.

    It works while `collect` waits; between two calls the env runners go on with what they have.
    """

    def __init__(
        self,
        group: EnvRunnerGroup,
        config: ARPOConfig,
        evaluation_config: ARPOConfig | None,
        restore: Callable[[], object],
    ):
        """
        Args:
            group: the training or the evaluation env runners.
            config: the configuration of this group's env runners.
            evaluation_config: of evaluation questions; None: there are none.
            restore: brings restarted env runners back, with the right weights; called after each failure.
        """
        self._group = group
        self._config = config
        self._overlaps = config.max_weight_lag > 0 and not config.in_evaluation
        """Whether the env runners sample on while the learner updates."""
        self._restore = restore
        self._configs = {False: config, True: evaluation_config or config}
        """By whether a question is an evaluation question."""
        self._patience_s = max(c.question_deadline_s for c in self._configs.values()) + HANG_SLACK_S
        self._waiting: deque[Ask] = deque()
        self._in_flight: dict[int, list[Ask]] = {}
        self._calls: dict[ray.ObjectRef, int] = {}
        """Calls that are not answered yet -> env runner; one for each at a time."""
        self._heard: dict[int, float] = {}
        """Env runner -> when it last finished a question, or began to have some."""
        self._called: dict[int, float] = {}
        """Env runner -> when it was called last."""
        self._done: dict[Ask, SampledQuestion] = {}
        self._failures = 0
        self._metrics: list[dict[str, Any]] = []

    def ask(self, numbers: Sequence[int], *, evaluation: bool = False) -> None:
        """Queues questions; evaluation goes before what is waiting already."""
        asks = [Ask(number, evaluation) for number in numbers]
        self._waiting = deque([*asks, *self._waiting] if evaluation else [*self._waiting, *asks])

    def collect(
        self, numbers: Sequence[int], *, weight_version: int, evaluation: bool = False
    ) -> list[SampledQuestion]:
        """Waits for these questions, which were asked before, and returns them in their order.

        Args:
            weight_version: the version that every engine must have when it is given questions.

        Raises:
            ValueError: bad data or a bug in the environment; not retried.
            RuntimeError: three failures in a row, with the last cause.
        """
        wanted = [Ask(number, evaluation) for number in numbers]
        # What goes on during the update must have been handed out by then.
        while any(ask not in self._done for ask in wanted) or (self._overlaps and self._waiting):
            self._exchange(weight_version)
        return [self._done.pop(ask) for ask in wanted]

    def take_metrics(self) -> list[dict[str, Any]]:
        """What callbacks logged on the env runners since the last call."""
        metrics, self._metrics = self._metrics, []
        return metrics

    def drop_all(self) -> None:
        """Forgets every question that was asked and is not collected; the env runners give them up."""
        # By name `foreach_env_runner` would never call it on the local env runner.
        self._group.foreach_env_runner(
            lambda runner: runner.drop_questions(), local_env_runner=self._is_local(), timeout_seconds=ANSWER_TIMEOUT_S
        )
        for container in (self._waiting, self._in_flight, self._calls, self._done):
            container.clear()

    def _exchange(self, weight_version: int) -> None:
        """New questions go to the env runners that can be called; what others answer is taken in."""
        answers = self._answers(self._share_out(), weight_version)
        error = None if answers or self._calls else "no env runner is healthy"
        for runner, outcome in answers:
            error = self._receive(runner, outcome) or error
        if error is None:
            return
        self._failures += 1
        if self._failures == MAX_FAILURES_IN_A_ROW:
            self._failures = 0
            missing = len(self._waiting) + sum(map(len, self._in_flight.values()))
            raise RuntimeError(
                f"Sampling failed {MAX_FAILURES_IN_A_ROW} times in a row; {missing} questions are missing. "
                f"Last cause: {error}"
            )
        logger.warning("An env runner failed (%s); its questions are sampled again.", error.splitlines()[0])
        self._wait_for_env_runners()

    def _share_out(self) -> dict[int, list[Ask]]:
        """Env runner -> new questions for it, of those that can be called now and have any question."""
        runners = [LOCAL] if self._is_local() else self._group.healthy_env_runner_ids()
        for runner in self._in_flight.keys() - set(runners):
            self._forget(runner)
        called = set(self._calls.values())
        shares: dict[int, list[Ask]] = {runner: [] for runner in runners if runner not in called}
        while self._waiting and runners:
            evaluation = self._waiting[0].evaluation
            load = {runner: self._num_in_flight(runner, evaluation) for runner in runners}
            runner = min(runners, key=lambda r: (load[r], r in called))
            # Who has least is waited for, else the one that happens to be free would get everything.
            if runner in called or load[runner] >= self._room(evaluation):
                break
            if not self._in_flight.setdefault(runner, []):
                self._heard[runner] = time.monotonic()
            ask = self._waiting.popleft()
            self._in_flight[runner].append(ask)
            shares[runner].append(ask)
        return {runner: share for runner, share in shares.items() if self._in_flight.get(runner)}

    def _num_in_flight(self, runner: int, evaluation: bool) -> int:
        return sum(ask.evaluation == evaluation for ask in self._in_flight.get(runner, ()))

    def _room(self, evaluation: bool) -> float:
        """How many questions of a kind an env runner is given at a time: as many as it has environments for them.

        During an update the driver hands out nothing, so an env runner that goes on meanwhile is given all.
        """
        if self._overlaps and not evaluation:
            return math.inf
        return self._configs[evaluation].num_envs_per_env_runner

    def _answers(self, shares: dict[int, list[Ask]], weight_version: int) -> list[tuple[int, Any]]:
        """Calls these env runners and waits until one of all that were called has answered.

        Returns:
            (env runner, Rollout, RolloutError or exception) of those that have.
        """
        common = {
            "weight_version": weight_version,
            "timeout_s": POLL_DURING_UPDATE_S if self._overlaps else POLL_S,
        }
        arguments = {runner: _numbers(share) | common for runner, share in shares.items()}
        if self._is_local():
            return [(runner, self._group.local_env_runner.exchange(**kwargs)) for runner, kwargs in arguments.items()]
        actors = self._group._worker_manager.actors()
        for runner, kwargs in arguments.items():
            self._calls[actors[runner].exchange.remote(**kwargs)] = runner
            self._called[runner] = time.monotonic()
        if not self._calls:
            return []
        calls = list(self._calls)
        ray.wait(calls, timeout=ANSWER_TIMEOUT_S)
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        answers = [(self._calls.pop(call), _outcome(call)) for call in ready]
        limit = time.monotonic() - ANSWER_TIMEOUT_S
        silent = [call for call, runner in self._calls.items() if self._called[runner] < limit]
        return answers + [(self._calls.pop(call), TimeoutError("it does not answer")) for call in silent]

    def _receive(self, runner: int, outcome: Rollout | RolloutError | Exception) -> str | None:
        """Takes an env runner's answer; returns what failed, if anything did."""
        if isinstance(outcome, RolloutError):
            if not outcome.retry or self._is_local():
                kind = RuntimeError if outcome.retry else ValueError
                raise kind(outcome.message) from RuntimeError(outcome.traceback)
            return self._lose(runner, f"{outcome.message}\n{outcome.traceback}", restart=True)
        if isinstance(outcome, Exception):
            died = isinstance(outcome, ray.exceptions.ActorDiedError)
            return self._lose(runner, f"{'it died: ' if died else ''}{outcome}", restart=not died)
        if outcome.metrics is not None:
            self._metrics.append(outcome.metrics)
        in_flight = self._in_flight[runner]
        for question in outcome.questions:
            if question.ask in in_flight:
                in_flight.remove(question.ask)
                self._done[question.ask] = question
        if outcome.questions:
            self._failures = 0
            self._heard[runner] = time.monotonic()
        if lost := [ask for ask in in_flight if ask not in outcome.in_flight]:
            # The env runner was restarted meanwhile.
            self._in_flight[runner] = in_flight = [ask for ask in in_flight if ask in outcome.in_flight]
            self._put_back(lost)
        if in_flight and (silence := time.monotonic() - self._heard[runner]) > self._patience_s:
            return self._lose(runner, f"no question has ended for {silence:.0f} s", restart=True)
        return None

    def _forget(self, runner: int) -> None:
        """An env runner is out of service; its questions go to others."""
        self._put_back(self._in_flight.pop(runner, []))
        self._calls = {call: other for call, other in self._calls.items() if other != runner}

    def _put_back(self, asks: list[Ask]) -> None:
        """Questions that were lost go before all others."""
        self._waiting.extendleft(reversed(asks))

    def _lose(self, runner: int, cause: str, *, restart: bool) -> str:
        """Puts an env runner's questions back, in front; with `restart` has Ray start it and its engine anew."""
        if self._is_local():
            raise RuntimeError(f"The local env runner: {cause}.")
        self._forget(runner)
        manager = self._group._worker_manager
        if restart:
            restart_env_runner(manager, runner)
        else:
            manager.set_actor_state(runner, healthy=False)
        return f"env runner {runner}: {cause}"

    def _wait_for_env_runners(self) -> None:
        """Restores what can be restored now; waits only while no env runner at all is healthy."""
        limit = time.monotonic() + self._config.env_runner_restore_timeout_s
        self._restore()
        while not self._group.healthy_env_runner_ids() and time.monotonic() < limit:
            time.sleep(1.0)
            self._restore()

    def _is_local(self) -> bool:
        return self._group.num_remote_env_runners() == 0


def _numbers(share: Sequence[Ask]) -> dict[str, list[int]]:
    """As `ARPOEnvRunner.exchange` takes them."""
    return {
        "numbers": [ask.number for ask in share if not ask.evaluation],
        "evaluation_numbers": [ask.number for ask in share if ask.evaluation],
    }


def _outcome(call: ray.ObjectRef) -> Rollout | RolloutError | Exception:
    try:
        return ray.get(call)
    except ray.exceptions.RayError as error:
        return error
