"""Gives numbered questions to the env runners of a group and returns every question, or the cause of its failure."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_arpo.envs.errors import DataError
from rllib_arpo.faults import Failure, end_env_runner, restart_env_runner
from rllib_arpo.rollout.messages import FailedQuestion, Purpose, QuestionRef, Reply, SampledQuestion, SamplingConditions

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

logger = logging.getLogger("rllib_arpo")

#: Failures without a finished question after which an env runner is given up; if none is left, the run ends.
MAX_FAILURES_IN_A_ROW = 3
#: Times that a question may raise before it is given up.
MAX_RAISES = 3
#: A question that was in flight during this many failures of env runners may be the cause: it is asked alone.
MAX_LOSSES = 2
#: A suspect is given up when this many env runners above suspicion have failed with it: one may be a coincidence.
MAX_LOSSES_ALONE = 2
#: Seconds beyond a question's deadline after which an env runner without a finished question counts as hung.
HANG_SLACK_S = 300.0
#: An env runner answers the driver at once when a question has ended, and otherwise after this many seconds: the
#: longest time for which it keeps another call waiting.
POLL_S = 2.0
#: The same while sampling goes on during updates, where the next weights are such a call.
POLL_DURING_UPDATE_S = 0.5
#: Seconds after which an env runner that does not answer at all counts as hung.
ANSWER_TIMEOUT_S = 120.0
#: The env runner in the driver's own process.
LOCAL = 0


class QuestionDispatcher:
    """Distributes questions over the healthy env runners of a group; asks again those that a failed one loses.

    A question that is lost repeatedly becomes a suspect: it is asked alone, and given up if env runners without an
    earlier failure fail with it. The dispatcher works while `collect` waits; between two calls the env runners
    continue with the questions that they have.
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
        self._configs = {Purpose.TRAINING: config, Purpose.EVALUATION: evaluation_config or config}
        self._patience_s = max(c.question_deadline_s for c in self._configs.values()) + HANG_SLACK_S
        self._waiting: deque[QuestionRef] = deque()
        self._in_flight: dict[int, list[QuestionRef]] = {}
        self._calls: dict[ray.ObjectRef, int] = {}
        """Unanswered calls -> env runner; each env runner has at most one."""
        self._heard: dict[int, float] = {}
        """Env runner -> when it last finished a question, or got its first ones, or `collect` began."""
        self._called: dict[int, float] = {}
        """Env runner -> when it was called last."""
        self._done: dict[QuestionRef, SampledQuestion] = {}
        self._metrics: dict[Purpose, list[dict[str, Any]]] = {purpose: [] for purpose in Purpose}
        self._failures: Counter[int] = Counter()
        """Env runner -> failures since it last finished a question."""
        self._finished: Counter[int] = Counter()
        """Env runner -> questions that it has finished since it last failed."""
        self._raises: Counter[QuestionRef] = Counter()
        self._losses: Counter[QuestionRef] = Counter()
        self._losses_alone: Counter[QuestionRef] = Counter()
        """Question -> how often it raised, how often an env runner failed with it in flight, and with it alone."""
        self._suspects: deque[QuestionRef] = deque()
        self._given_up: dict[QuestionRef, str] = {}
        self._missing: dict[QuestionRef, str] = {}
        """Questions that were given up, and those of them that `collect` was asked for -> the cause."""

    def ask(self, refs: Sequence[QuestionRef]) -> None:
        """Queues questions; those for evaluation go before all that are waiting."""
        first = [ref for ref in refs if ref.purpose == Purpose.EVALUATION]
        last = [ref for ref in refs if ref.purpose == Purpose.TRAINING]
        self._waiting = deque([*first, *self._waiting, *last])

    def collect(self, refs: Sequence[QuestionRef], conditions: SamplingConditions) -> list[SampledQuestion]:
        """Waits for these questions, which were asked before, and returns them in their order.

        Leaves out those that were given up; `take_missing` returns them.

        Args:
            conditions: of questions that are handed out meanwhile.

        Raises:
            DataError: bad data; not retried.
            RuntimeError: no env runner is left, or the engine of the local one failed; the message has the last cause.
        """
        # The driver has heard nobody while it did something else.
        self._heard.update(dict.fromkeys(self._in_flight, time.monotonic()))
        # Questions to be sampled during the update must be handed out before it.
        while any(ref not in self._done and ref not in self._given_up for ref in refs) or (
            self._overlaps and self._waiting
        ):
            self._exchange(conditions)
        self._missing |= {ref: self._given_up.pop(ref) for ref in refs if ref in self._given_up}
        return [self._done.pop(ref) for ref in refs if ref in self._done]

    def take_missing(self) -> dict[QuestionRef, str]:
        """Questions that `collect` left out, since they were given up -> the cause."""
        missing, self._missing = self._missing, {}
        return missing

    def take_metrics(self, purpose: Purpose) -> list[dict[str, Any]]:
        """The metrics that callbacks logged for questions of this purpose since the last call."""
        metrics, self._metrics[purpose] = self._metrics[purpose], []
        return metrics

    def drop_all(self) -> None:
        """Forgets every question that was asked but not collected; the env runners drop them."""
        # Not by the method's name: `foreach_env_runner` would then never call it on the local env runner.
        self._group.foreach_env_runner(
            lambda runner: runner.drop_questions(), local_env_runner=self._is_local(), timeout_seconds=ANSWER_TIMEOUT_S
        )
        for container in (
            self._waiting, self._suspects, self._in_flight, self._calls, self._done, self._raises, self._losses,
            self._losses_alone, self._given_up, self._missing,
        ):  # fmt: skip
            container.clear()

    def _exchange(self, conditions: SamplingConditions) -> None:
        """Hands new questions to the env runners that can be called, and takes in the answers of all."""
        answers = self._answers(self._share_out(), conditions)
        causes = [cause for answer in answers if (cause := self._receive(*answer))]
        for cause in causes:
            logger.warning("An env runner failed (%s); its questions are sampled again.", cause.splitlines()[0])
        if causes or not (answers or self._calls):
            self._wait_for_env_runners(causes[-1] if causes else "no env runner is healthy")

    def _share_out(self) -> dict[int, list[QuestionRef]]:
        """Env runner -> its new questions, for env runners that can be called now and have any question."""
        runners = [LOCAL] if self._is_local() else self._group.healthy_env_runner_ids()
        for runner in self._in_flight.keys() - set(runners):
            self._forget(runner)
        called = set(self._calls.values())
        shares: dict[int, list[QuestionRef]] = {runner: [] for runner in runners if runner not in called}
        # A suspect goes to an idle env runner with the fewest failures.
        fewest_failures = min((self._failures[runner] for runner in runners), default=0)
        for runner in sorted(shares, key=lambda runner: -self._finished[runner]):
            is_free = not self._in_flight.get(runner) and self._failures[runner] == fewest_failures
            if self._suspects and is_free:
                self._hand_out(self._suspects.popleft(), runner, shares)
        runners = [runner for runner in runners if not self._has_suspect(runner)]
        while self._waiting and runners:
            purpose = self._waiting[0].purpose
            load = {runner: self._num_in_flight(runner, purpose) for runner in runners}
            runner = min(runners, key=lambda r: (load[r], r in called))
            # Wait for the env runner with the fewest questions; otherwise the one that happens to be free would get all
            # of them.
            if runner in called or load[runner] >= self._room(purpose):
                break
            self._hand_out(self._waiting.popleft(), runner, shares)
        return {runner: share for runner, share in shares.items() if self._in_flight.get(runner)}

    def _hand_out(self, ref: QuestionRef, runner: int, shares: dict[int, list[QuestionRef]]) -> None:
        if not self._in_flight.setdefault(runner, []):
            self._heard[runner] = time.monotonic()
        self._in_flight[runner].append(ref)
        shares[runner].append(ref)

    def _has_suspect(self, runner: int) -> bool:
        return any(self._losses[ref] >= MAX_LOSSES for ref in self._in_flight.get(runner, ()))

    def _num_in_flight(self, runner: int, purpose: Purpose) -> int:
        return sum(ref.purpose == purpose for ref in self._in_flight.get(runner, ()))

    def _room(self, purpose: Purpose) -> float:
        """How many questions of a purpose an env runner gets at a time: as many as it has environments for them.

        During an update the driver hands out no questions, so an env runner that samples meanwhile gets all in advance.
        """
        if self._overlaps and purpose == Purpose.TRAINING:
            return math.inf
        return self._configs[purpose].num_envs_per_env_runner

    def _answers(self, shares: dict[int, list[QuestionRef]], conditions: SamplingConditions) -> list[tuple[int, Any]]:
        """Calls these env runners and waits until at least one called env runner has answered.

        Returns:
            (env runner, Reply, Failure or exception) of those that have answered.
        """
        timeout_s = POLL_DURING_UPDATE_S if self._overlaps else POLL_S
        if self._is_local():
            exchange = self._group.local_env_runner.exchange
            return [(runner, exchange(refs, conditions, timeout_s)) for runner, refs in shares.items()]
        actors = self._group._worker_manager.actors()
        for runner, refs in shares.items():
            self._calls[actors[runner].exchange.remote(refs, conditions, timeout_s)] = runner
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

    def _receive(self, runner: int, outcome: Reply | Failure | Exception) -> str | None:
        """Takes an env runner's answer; returns what failed, if anything did."""
        if isinstance(outcome, Failure):
            if not outcome.retry or self._is_local():
                kind = RuntimeError if outcome.retry else DataError
                raise kind(outcome.message) from RuntimeError(outcome.traceback)
            return self._lose(runner, f"{outcome.message}\n{outcome.traceback}", restart=True)
        if isinstance(outcome, Exception):
            # Ray restarts an actor whose process has died by itself.
            gone = isinstance(outcome, ray.exceptions.RayActorError)
            return self._lose(runner, f"{'it died: ' if gone else ''}{outcome}", restart=not gone)
        for purpose, metrics in outcome.metrics.items():
            self._metrics[purpose].append(metrics)
        in_flight = self._in_flight[runner]
        for question in outcome.questions:
            if question.ref in in_flight:
                in_flight.remove(question.ref)
                self._done[question.ref] = question
                self._finished[runner] += 1
                self._clear(question.ref)
        for failed in outcome.failed:
            if failed.ref in in_flight:
                in_flight.remove(failed.ref)
                logger.warning("%s failed.\n%s", failed.ref, failed.failure.traceback)
                self._ask_again_if_it_raised_rarely(failed)
        if outcome.questions or outcome.failed:
            self._failures.pop(runner, None)
            self._heard[runner] = time.monotonic()
        if lost := [ref for ref in in_flight if ref not in outcome.in_flight]:
            self._in_flight[runner] = in_flight = [ref for ref in in_flight if ref in outcome.in_flight]
            self._put_back(lost)
        if in_flight and (silence := time.monotonic() - self._heard[runner]) > self._patience_s:
            return self._lose(runner, f"no question has ended for {silence:.0f} s", restart=True)
        return None

    def _ask_again_if_it_raised_rarely(self, failed: FailedQuestion) -> None:
        self._raises[failed.ref] += 1
        if self._raises[failed.ref] < MAX_RAISES:
            queue = self._suspects if self._losses[failed.ref] >= MAX_LOSSES else self._waiting
            queue.appendleft(failed.ref)
        else:
            self._give_up(failed.ref, failed.failure.message)

    def _give_up(self, ref: QuestionRef, cause: str) -> None:
        logger.error("The %s is given up: %s", ref, cause)
        self._given_up[ref] = cause
        self._clear(ref)

    def _clear(self, ref: QuestionRef) -> None:
        """A question has come to its end; what was held against it is forgotten."""
        del self._raises[ref], self._losses[ref], self._losses_alone[ref]

    def _forget(self, runner: int) -> None:
        """Removes an env runner that is out of service; its questions go to others."""
        self._put_back(self._in_flight.pop(runner, []))
        self._calls = {call: other for call, other in self._calls.items() if other != runner}

    def _put_back(self, refs: Sequence[QuestionRef]) -> None:
        """Queues lost questions before all others; those that were lost repeatedly will be asked alone."""
        self._losses.update(refs)
        self._waiting.extendleft(reversed([ref for ref in refs if self._losses[ref] < MAX_LOSSES]))
        self._suspects.extend(ref for ref in refs if self._losses[ref] >= MAX_LOSSES)

    def _lose(self, runner: int, cause: str, *, restart: bool) -> str:
        """Puts an env runner's questions back, in front; `restart` makes Ray restart it with its engine.

        Ends an env runner for good if it has failed too often.
        """
        if self._is_local():
            raise RuntimeError(f"The local env runner: {cause}.")
        manager = self._group._worker_manager
        if self._has_suspect(runner) and not self._failures[runner]:
            (suspect,) = self._in_flight[runner]
            self._losses_alone[suspect] += 1
            if self._losses_alone[suspect] == MAX_LOSSES_ALONE:
                del self._in_flight[runner]
                self._give_up(suspect, cause)
        else:
            self._failures[runner] += 1
        del self._finished[runner]
        self._forget(runner)
        if self._failures[runner] >= MAX_FAILURES_IN_A_ROW:
            logger.error("Env runner %d is given up: it failed %d times in a row.", runner, MAX_FAILURES_IN_A_ROW)
            end_env_runner(manager, runner)
        elif restart:
            restart_env_runner(manager, runner)
        else:
            manager.set_actor_state(runner, healthy=False)
        return f"env runner {runner}: {cause}"

    def _wait_for_env_runners(self, cause: str) -> None:
        """Restores the env runners that can be restored now; waits only while no env runner is healthy.

        Raises:
            RuntimeError: no env runner comes back.
        """
        limit = time.monotonic() + self._config.env_runner_restore_timeout_s
        self._restore()
        while not self._group.healthy_env_runner_ids():
            runners = self._group._worker_manager.actors()
            all_failed = all(self._failures[runner] >= MAX_FAILURES_IN_A_ROW for runner in runners)
            if all_failed or time.monotonic() > limit:
                self._failures.clear()
                missing = len(self._waiting) + len(self._suspects) + sum(map(len, self._in_flight.values()))
                why = f"failed {MAX_FAILURES_IN_A_ROW} times in a row" if all_failed else "does not come back"
                raise RuntimeError(f"Every env runner {why}; {missing} questions are missing. Last cause: {cause}")
            time.sleep(1.0)
            self._restore()

    def _is_local(self) -> bool:
        return self._group.num_remote_env_runners() == 0


def _outcome(call: ray.ObjectRef) -> Reply | Failure | Exception:
    try:
        return ray.get(call)
    except ray.exceptions.RayError as error:
        return error
