"""Gives numbered questions to the env runners of a group and returns every question, or the cause of its failure."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_arpo.envs.errors import DataError
from rllib_arpo.faults import ANSWER_TIMEOUT_S, CONSTRUCTION_TIMEOUT_S, Failure, end_env_runner, restart_env_runner
from rllib_arpo.rollout.messages import Purpose, QuestionRef, RunnerAnswer, SampledQuestion, SamplingConditions

logger = logging.getLogger("rllib_arpo")

#: Failures without a finished question after which an env runner is given up; if none is left, the run ends.
MAX_FAILURES_IN_A_ROW = 3
#: How often a question may raise before it is given up.
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
#: The same if env runners sample during updates. It is shorter, because new weights have to wait for such a call.
POLL_DURING_UPDATE_S = 0.5
#: Seconds within which engines must fall asleep.
SLEEP_TIMEOUT_S = 600.0
#: The env runner in the driver's own process.
LOCAL = 0


@dataclass(slots=True, eq=False)
class _AskedQuestion:
    """A question that was asked and not collected yet.

    Attributes:
        num_raised: how often it raised.
        num_lost: how often an env runner failed with it in flight, or forgot it.
        lost_alone: the env runners that failed while they had only this question, and that had not failed without it.
            If only one env runner is left, it may stand here twice.
        result: the sampled question, if it was sampled.
        cause: why the question was given up, if it was.
    """

    ref: QuestionRef
    num_raised: int = 0
    num_lost: int = 0
    lost_alone: list[int] = field(default_factory=list)
    result: SampledQuestion | None = None
    cause: str | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be the cause of the failures of env runners."""
        return self.num_lost >= MAX_LOSSES

    @property
    def has_ended(self) -> bool:
        return self.result is not None or self.cause is not None

    def give_up(self, cause: str) -> None:
        logger.error("The %s is given up: %s", self.ref, cause)
        self.cause = cause


@dataclass(slots=True, eq=False)
class _Runner:
    """The dispatcher's view of an env runner; it outlives the env runner's restarts.

    Attributes:
        in_flight: the questions that it has.
        call: its unanswered call; it has at most one.
        called_at: when that call was made.
        heard_at: when it last finished a question, or got its first ones, or `collect` began.
        num_failures: failures since it last finished a question.
        always_lost: the questions that were in flight at all of these failures.
        num_finished: questions that it has finished since it last failed.
        ping: the unanswered ping of an env runner that is out of service.
    """

    in_flight: dict[QuestionRef, _AskedQuestion] = field(default_factory=dict)
    call: ray.ObjectRef | None = None
    called_at: float = 0.0
    heard_at: float = 0.0
    num_failures: int = 0
    always_lost: set[QuestionRef] = field(default_factory=set)
    num_finished: int = 0
    ping: ray.ObjectRef | None = None

    @property
    def suspect(self) -> _AskedQuestion | None:
        """The suspect in flight, which is then the only question."""
        return next((question for question in self.in_flight.values() if question.is_suspect), None)

    def is_above_suspicion(self, suspect: _AskedQuestion) -> bool:
        """Whether all its failures may be this question's fault."""
        return not self.num_failures or suspect.ref in self.always_lost

    def load(self, purpose: Purpose) -> int:
        return sum(ref.purpose == purpose for ref in self.in_flight)


class QuestionDispatcher:
    """Distributes questions over the healthy env runners of a group; if one fails, asks its questions again.

    If an env runner fails, others get its questions. A question that two failing env runners had becomes a suspect: the
    next env runner gets it alone. It is given up when two env runners have failed with it alone that had not failed
    without it; if only one env runner is left, when that one has failed twice. The dispatcher works while `collect`
    waits; between two calls the env runners continue with the questions that they have.
    """

    def __init__(
        self,
        group: EnvRunnerGroup,
        config: AlgorithmConfig,
        evaluation_config: AlgorithmConfig | None,
        restore: Callable[[], object],
    ):
        """
        Args:
            group: the training or the evaluation env runners.
            config: of these env runners.
            evaluation_config: for evaluation questions, if there are any.
            restore: brings restarted env runners back, with the right weights; called after each failure.
        """
        self._group = group
        self._configs = {Purpose.TRAINING: config, Purpose.EVALUATION: evaluation_config or config}
        self._restore_timeout_s = config.env_runner_restore_timeout_s if config.restart_failed_env_runners else 0.0
        #: Whether the env runners go on sampling while the learner updates.
        self._overlaps = config.max_weight_lag > 0 and not config.in_evaluation
        self._restore = restore
        self._runners: defaultdict[int, _Runner] = defaultdict(_Runner)
        #: All questions that were asked and not collected yet.
        self._asked: dict[QuestionRef, _AskedQuestion] = {}
        #: Questions that no env runner has, in the order in which they are handed out, and suspects, to be asked alone.
        self._waiting: deque[_AskedQuestion] = deque()
        self._suspects: deque[_AskedQuestion] = deque()
        self._given_up: dict[QuestionRef, str] = {}
        self._metrics: dict[Purpose, list[dict[str, Any]]] = {purpose: [] for purpose in Purpose}

    def ask(self, refs: Sequence[QuestionRef]) -> None:
        """Queues questions; evaluation's questions go before all waiting ones."""
        new = [_AskedQuestion(ref) for ref in refs]
        self._asked |= {question.ref: question for question in new}
        first = [question for question in new if question.ref.purpose == Purpose.EVALUATION]
        last = [question for question in new if question.ref.purpose == Purpose.TRAINING]
        self._waiting = deque([*first, *self._waiting, *last])

    def collect(self, refs: Sequence[QuestionRef], conditions: SamplingConditions) -> list[SampledQuestion]:
        """Waits for these questions, which were asked before, and returns them in their order.

        Leaves out questions that were given up; `take_given_up` returns them.

        Args:
            conditions: for the questions that are handed out meanwhile.

        Raises:
            DataError: bad data; not retried.
            RuntimeError: no env runner is left, or the engine of the local one failed; the message has the last cause.
        """
        for runner in self._runners.values():
            # The driver has heard nobody while it did something else, and answers may still be on their way.
            runner.heard_at = runner.called_at = time.monotonic()
        # Questions to be sampled during the update must be handed out before it.
        while not all(self._asked[ref].has_ended for ref in refs) or (self._overlaps and self._waiting):
            self._exchange(conditions)
        questions = [self._asked.pop(ref) for ref in refs]
        self._given_up |= {q.ref: q.cause for q in questions if q.cause is not None}
        return [q.result for q in questions if q.result is not None]

    def num_questions(self, purpose: Purpose, limit: int) -> int:
        """`limit`, or the number of questions in the env runners' task if that is smaller.

        Raises:
            DataError: the environments of this purpose cannot be made, or have no question.
        """
        found = self._group.foreach_env_runner(
            lambda runner: runner.num_questions(purpose),
            local_env_runner=self._is_local(),
            timeout_seconds=CONSTRUCTION_TIMEOUT_S,
        )
        for failure in found:
            if isinstance(failure, Failure):
                _raise(failure)
        if 0 in found:
            raise DataError(f"The environment has no question for {purpose.value} (num_questions=0).")
        return min([limit, *(number for number in found if number is not None)])

    def sleep(self, level: int) -> None:
        """Makes the engines free their memory on a GPU that they share with the learner; the next weights wake them.

        Raises:
            RuntimeError: an engine cannot sleep, or an env runner does not answer. The learner would lack the memory.
        """
        errors = self._group.foreach_env_runner(
            lambda runner: runner.sleep(level), local_env_runner=self._is_local(), timeout_seconds=SLEEP_TIMEOUT_S
        )
        if found := [error for error in errors if error is not None]:
            raise RuntimeError(" ".join(error.message for error in found))
        # RLlib leaves out the answers of those that died, which have freed their memory, and of those that hang.
        healthy = len(self._group.healthy_env_runner_ids())
        if not self._is_local() and (silent := healthy - len(errors)) > 0:
            raise RuntimeError(
                f"{silent} of {healthy} env runners did not free GPU memory within {SLEEP_TIMEOUT_S:g} s."
            )

    def take_given_up(self) -> dict[QuestionRef, str]:
        """The questions that `collect` left out, and why each was given up."""
        given_up, self._given_up = self._given_up, {}
        return given_up

    def take_metrics(self, purpose: Purpose) -> list[dict[str, Any]]:
        """The metrics that callbacks logged for questions of this purpose since the last call."""
        metrics, self._metrics[purpose] = self._metrics[purpose], []
        return metrics

    def drop_all(self) -> None:
        """Forgets every question that was asked but not collected; the env runners drop them."""
        # Given the method's name, `foreach_env_runner` would never call the local env runner.
        self._group.foreach_env_runner(
            lambda runner: runner.drop_questions(), local_env_runner=self._is_local(), timeout_seconds=ANSWER_TIMEOUT_S
        )
        for runner in self._runners.values():
            runner.in_flight.clear()
            runner.call = None
        for container in (self._asked, self._waiting, self._suspects, self._given_up):
            container.clear()

    def _exchange(self, conditions: SamplingConditions) -> None:
        """Hands new questions to the env runners that can be called, and processes all answers."""
        answers = self._answers(self._share_out(), conditions)
        causes = [cause for answer in answers if (cause := self._receive(*answer))]
        for cause in causes:
            logger.warning("An env runner failed; its questions are sampled again.\n%s", cause)
        if causes or not (answers or any(runner.call is not None for runner in self._runners.values())):
            self._wait_for_env_runners(causes[-1] if causes else "no env runner is healthy")
        elif not self._is_local():
            self._restore_restarted()

    def _restore_restarted(self) -> None:
        """Restores env runners that Ray has restarted, as soon as one answers; until then the others go on."""
        actors = self._group._worker_manager.actors()
        for number in actors.keys() - set(self._group.healthy_env_runner_ids()):
            runner = self._runners[number]
            if runner.num_failures < MAX_FAILURES_IN_A_ROW:
                runner.ping = runner.ping or actors[number].ping.remote()
        pings = {runner.ping: runner for runner in self._runners.values() if runner.ping is not None}
        if not pings:
            return
        ready, _ = ray.wait([*pings], num_returns=len(pings), timeout=0)
        for ping in ready:
            pings[ping].ping = None
        if any(not isinstance(_outcome(ping), Exception) for ping in ready):
            self._restore()

    def _share_out(self) -> dict[int, list[QuestionRef]]:
        """Env runner -> its new questions, for env runners that can be called now and have questions."""
        healthy = [LOCAL] if self._is_local() else self._group.healthy_env_runner_ids()
        for number in self._runners.keys() - set(healthy):
            self._forget(self._runners[number])
        runners = {number: self._runners[number] for number in healthy}
        shares: dict[int, list[QuestionRef]] = {n: [] for n, runner in runners.items() if runner.call is None}
        for number in sorted(shares, key=lambda number: -runners[number].num_finished):
            runner = runners[number]
            if self._suspects and not runner.in_flight and number in _best_for(self._suspects[0], runners):
                shares[number].append(_hand_out(self._suspects.popleft(), runner))
        runners = {number: runner for number, runner in runners.items() if runner.suspect is None}
        while self._waiting and runners:
            purpose = self._waiting[0].ref.purpose
            # Wait for the env runner with the fewest questions; otherwise one that happens to be free would get all.
            number = min(runners, key=lambda n: (runners[n].load(purpose), n not in shares))
            if number not in shares or runners[number].load(purpose) >= self._room(purpose):
                break
            shares[number].append(_hand_out(self._waiting.popleft(), runners[number]))
        return {number: share for number, share in shares.items() if self._runners[number].in_flight}

    def _room(self, purpose: Purpose) -> float:
        """The number of questions of a purpose that an env runner gets at a time: one for each of its environments.

        During an update the driver hands out no questions, so an env runner that samples meanwhile gets all in advance.
        """
        if self._overlaps and purpose == Purpose.TRAINING:
            return math.inf
        num_envs: int = self._configs[purpose].num_envs_per_env_runner
        return num_envs

    def _answers(self, shares: dict[int, list[QuestionRef]], conditions: SamplingConditions) -> list[tuple[int, Any]]:
        """Calls these env runners and waits until at least one called env runner has answered.

        Returns:
            (env runner, RunnerAnswer, Failure or exception) for each env runner that has answered.
        """
        timeout_s = POLL_DURING_UPDATE_S if self._overlaps else POLL_S
        if self._is_local():
            exchange = self._group.local_env_runner.exchange
            return [(number, exchange(refs, conditions, timeout_s)) for number, refs in shares.items()]
        actors = self._group._worker_manager.actors()
        for number, refs in shares.items():
            self._runners[number].call = actors[number].exchange.remote(refs, conditions, timeout_s)
            self._runners[number].called_at = time.monotonic()
        calls = {runner.call: number for number, runner in self._runners.items() if runner.call is not None}
        if not calls:
            return []
        ray.wait([*calls], timeout=ANSWER_TIMEOUT_S)
        ready, _ = ray.wait([*calls], num_returns=len(calls), timeout=0)
        answers = [(calls.pop(call), _outcome(call)) for call in ready]
        limit = time.monotonic() - ANSWER_TIMEOUT_S
        silent = [number for number in calls.values() if self._runners[number].called_at < limit]
        answers += [(number, TimeoutError("it does not answer")) for number in silent]
        for number, _ in answers:
            self._runners[number].call = None
        return answers

    def _receive(self, number: int, outcome: RunnerAnswer | Failure | Exception) -> str | None:
        """Processes an env runner's answer; returns the cause if the env runner failed."""
        if isinstance(outcome, Failure):
            if not outcome.retry or self._is_local():
                _raise(outcome)
            return self._lose(number, f"{outcome.message}\n{outcome.traceback}", restart=True)
        if isinstance(outcome, Exception):
            # Ray itself restarts an actor whose process has died.
            gone = isinstance(outcome, ray.exceptions.RayActorError)
            return self._lose(number, f"{'it died: ' if gone else ''}{outcome}", restart=not gone)
        for purpose, metrics in outcome.metrics.items():
            self._metrics[purpose].append(metrics)
        runner = self._runners[number]
        for sampled in outcome.questions:
            if question := runner.in_flight.pop(sampled.ref, None):
                question.result = sampled
                runner.num_finished += 1
        for failed in outcome.failed:
            if question := runner.in_flight.pop(failed.ref, None):
                logger.warning("%s failed.\n%s", failed.ref, failed.failure.traceback)
                self._put_back_raised(question, failed.failure)
        if outcome.questions or outcome.failed:
            runner.num_failures = 0
            runner.heard_at = time.monotonic()
        forgotten = [ref for ref in runner.in_flight if ref not in outcome.in_flight]
        self._put_back([runner.in_flight.pop(ref) for ref in forgotten])
        silence = time.monotonic() - runner.heard_at
        longest_s = max(config.question_deadline_s for config in self._configs.values())
        if runner.in_flight and silence > longest_s + HANG_SLACK_S:
            return self._lose(number, f"no question has ended for {silence:.0f} s", restart=True)
        return None

    def _put_back(self, questions: Sequence[_AskedQuestion]) -> None:
        """Queues lost questions before all others; repeatedly lost ones will be asked alone."""
        for question in questions:
            question.num_lost += 1
        self._waiting.extendleft(reversed([question for question in questions if not question.is_suspect]))
        self._suspects.extend(question for question in questions if question.is_suspect)

    def _put_back_raised(self, question: _AskedQuestion, failure: Failure) -> None:
        """Queues a question that raised before all others, unless it would raise again or has raised too often."""
        question.num_raised += 1
        if failure.retry and question.num_raised < MAX_RAISES:
            (self._suspects if question.is_suspect else self._waiting).appendleft(question)
        else:
            question.give_up(failure.message)

    def _forget(self, runner: _Runner) -> None:
        """Takes back the questions of an env runner that is out of service."""
        self._put_back([*runner.in_flight.values()])
        runner.in_flight.clear()
        runner.call = None

    def _lose(self, number: int, cause: str, *, restart: bool) -> str:
        """Puts an env runner's questions back, in front; `restart` makes Ray restart it with its engine.

        Ends an env runner for good if it has failed too often.
        """
        if self._is_local():
            raise RuntimeError(f"The local env runner: {cause}.")
        manager, runner = self._group._worker_manager, self._runners[number]
        suspect = runner.suspect
        left = {n for n in manager.actors() if self._runners[n].num_failures < MAX_FAILURES_IN_A_ROW}
        if suspect and (number not in suspect.lost_alone or left == {number}) and runner.is_above_suspicion(suspect):
            suspect.lost_alone.append(number)
            if len(suspect.lost_alone) == MAX_LOSSES_ALONE:
                runner.in_flight.clear()
                suspect.give_up(cause)
        else:
            lost = set(runner.in_flight)
            runner.always_lost = runner.always_lost & lost if runner.num_failures else lost
            runner.num_failures += 1
        runner.num_finished = 0
        self._forget(runner)
        if runner.num_failures >= MAX_FAILURES_IN_A_ROW:
            logger.error("Env runner %d is given up: it failed %d times in a row.", number, MAX_FAILURES_IN_A_ROW)
            end_env_runner(manager, number)
        elif restart:
            restart_env_runner(manager, number)
        else:
            manager.set_actor_state(number, healthy=False)
        return f"env runner {number}: {cause}"

    def _wait_for_env_runners(self, cause: str) -> None:
        """Restores the env runners that can be restored now; waits only while no env runner is healthy.

        Raises:
            RuntimeError: no env runner comes back.
        """
        limit = time.monotonic() + self._restore_timeout_s
        self._restore()
        while not self._group.healthy_env_runner_ids():
            runners = [self._runners[number] for number in self._group._worker_manager.actors()]
            all_failed = all(runner.num_failures >= MAX_FAILURES_IN_A_ROW for runner in runners)
            if all_failed or time.monotonic() >= limit:
                for runner in runners:
                    runner.num_failures = 0
                missing = sum(not question.has_ended for question in self._asked.values())
                why = f"failed {MAX_FAILURES_IN_A_ROW} times in a row" if all_failed else "does not come back"
                raise RuntimeError(f"Every env runner {why}; {missing} questions are missing. Last cause: {cause}")
            time.sleep(1.0)
            self._restore()

    def _is_local(self) -> bool:
        return self._group.num_remote_env_runners() == 0


def _best_for(suspect: _AskedQuestion, runners: dict[int, _Runner]) -> set[int]:
    """The env runners with the fewest failures; if possible, those that have not yet failed with this suspect alone."""
    new = {number: runner for number, runner in runners.items() if number not in suspect.lost_alone} or runners
    fewest = min(runner.num_failures for runner in new.values())
    return {number for number, runner in new.items() if runner.num_failures == fewest}


def _hand_out(question: _AskedQuestion, runner: _Runner) -> QuestionRef:
    if not runner.in_flight:
        runner.heard_at = time.monotonic()
    runner.in_flight[question.ref] = question
    return question.ref


def _raise(failure: Failure) -> NoReturn:
    kind = RuntimeError if failure.retry else DataError
    raise kind(failure.message) from RuntimeError(failure.traceback)


def _outcome(call: ray.ObjectRef) -> RunnerAnswer | Failure | Exception:
    try:
        return ray.get(call)
    except ray.exceptions.RayError as error:
        return error
