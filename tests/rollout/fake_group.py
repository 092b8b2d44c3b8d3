"""Env runners without processes, for the dispatcher: they answer, hang, die or raise by script."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import ray

from rllib_arpo.core.rollout_history import RolloutReference
from rllib_arpo.faults import Failure
from rllib_arpo.rollout import dispatch
from rllib_arpo.rollout.messages import FailedQuestion, Purpose, Reply, SampledQuestion

DIES = ray.exceptions.RayActorError(error_msg="out of memory")
RESTARTS = ray.exceptions.ActorUnavailableError("socket closed", actor_id=None)
HANGS, SILENT, FORGETS = "does not answer", "finishes nothing", "has lost its questions"
LATE = "answers when the driver has waited for others: all questions end"
DIED_BEFORE = "was restarted before this call: has only its new questions"


class FakeCall:
    """A call that is answered with `outcome`, or never."""

    def __init__(self, outcome, late=False):
        self.outcome = outcome
        self.late = late

    def ready(self):
        return self.outcome is not HANGS and not self.late


def fake_get(call):
    if isinstance(call.outcome, Exception):
        raise call.outcome
    return call.outcome


@dataclass
class FakeGroup:
    """Env runners by script.

    `replies[runner]` has, per call, an exception (it died), HANGS, LATE, SILENT, FORGETS, DIED_BEFORE, a Failure,
    a number of questions that end, or nothing more (all questions end).
    """

    replies: dict[int, list]
    clock: list[float]
    healthy: set[int] = field(default_factory=set)
    asked: list[tuple] = field(default_factory=list)
    restarted: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    questions: dict[int, list] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    timeouts: set[float] = field(default_factory=set)
    references: list[RolloutReference] = field(default_factory=list)
    raising: set[int] = field(default_factory=set)
    deadly: set[int] = field(default_factory=set)

    def __post_init__(self):
        self.healthy = set(self.replies)
        self.questions = {runner: [] for runner in self.replies}
        self._worker_manager = self

    def num_remote_env_runners(self):
        return len(self.replies)

    def healthy_env_runner_ids(self):
        return sorted(self.healthy)

    def actors(self):
        return {runner: self._actor(runner) for runner in self.replies}

    def _actor(self, runner):
        def exchange(*args):
            late = self.replies[runner][:1] == [LATE]
            return FakeCall(self._call(runner, *args), late)

        exchange = SimpleNamespace(remote=exchange)
        return SimpleNamespace(runner=runner, exchange=exchange)

    def set_actor_state(self, runner, healthy):
        self.healthy.discard(runner)
        self.questions[runner] = []

    def restore(self):
        self.healthy = set(self.replies) - self.ended

    def foreach_env_runner(self, function, local_env_runner, timeout_seconds):
        assert (local_env_runner, timeout_seconds) == (False, dispatch.ANSWER_TIMEOUT_S)
        function(SimpleNamespace(drop_questions=lambda: self.calls.append("drop_questions")))
        self.questions = {runner: [] for runner in self.replies}

    def _call(self, runner, refs, conditions, timeout_s):
        assert conditions.weight_version == 3
        self.references.append(conditions.rollout_reference)
        self.timeouts.add(timeout_s)
        numbers = {purpose: [ref.number for ref in refs if ref.purpose == purpose] for purpose in Purpose}
        if refs:
            self.asked.append(
                (runner, *numbers.values()) if numbers[Purpose.EVALUATION] else (runner, numbers[Purpose.TRAINING])
            )
        held = self.questions[runner]
        held += refs
        reply = self.replies[runner].pop(0) if self.replies[runner] else len(held)
        if any(ref.number in self.deadly for ref in held):
            reply = DIES
        if reply == HANGS:
            return HANGS
        if isinstance(reply, Exception):
            self.healthy.discard(runner)
            held.clear()
        if reply == DIED_BEFORE:
            held[:] = refs
        if isinstance(reply, Exception | Failure):
            return reply
        if reply == FORGETS:
            held.clear()
        if reply == SILENT:
            self.clock[0] += 200.0
        num_ended = len(held) if reply == LATE else reply if isinstance(reply, int) else 0
        ended = [held.pop(0) for _ in range(num_ended)]
        sampled = [SampledQuestion(ref, None) for ref in ended if ref.number not in self.raising]
        failure = Failure("ValueError: a bug", retry=True)
        failed = [FailedQuestion(ref, failure) for ref in ended if ref.number in self.raising]
        return Reply(sampled, frozenset(held), {}, failed)
