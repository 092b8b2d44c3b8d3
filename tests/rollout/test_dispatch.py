"""Questions over env runners that die, hang, or raise: every question comes back, or the cause does."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import ray

from rllib_arpo import ARPOConfig, faults
from rllib_arpo.core.rollout_history import RolloutReference
from rllib_arpo.envs.errors import DataError
from rllib_arpo.faults import Failure
from rllib_arpo.rollout import dispatch
from rllib_arpo.rollout.dispatch import QuestionDispatcher
from rllib_arpo.rollout.messages import (
    FailedQuestion,
    Purpose,
    QuestionRef,
    RunnerAnswer,
    SampledQuestion,
    SamplingConditions,
    question_refs,
)

DIES = ray.exceptions.RayActorError(error_msg="out of memory")
RESTARTS = ray.exceptions.ActorUnavailableError("socket closed", actor_id=None)
HANGS, SILENT, FORGETS = "does not answer", "finishes nothing", "has lost its questions"
DIED_BEFORE = "was restarted before this call: has only its new questions"


LATE = "has ended its questions, and the answer is on its way for a while"


class FakeCall:
    """A call that is answered with `outcome` after `ready` was asked `num_looks` times, or never."""

    def __init__(self, outcome, num_looks=0):
        self.outcome, self.num_looks = outcome, num_looks

    def ready(self):
        self.num_looks -= 1
        return self.num_looks < 0 and self.outcome is not HANGS


def fake_get(call):
    if isinstance(call.outcome, Exception):
        raise call.outcome
    return call.outcome


@dataclass
class FakeGroup:
    """Env runners by script.

    `replies[runner]` has, per call, an exception (it died), HANGS, SILENT, FORGETS, DIED_BEFORE, a Failure,
    a number of questions that end, or nothing more (all questions end).
    `num_pings` is how often a restarted one is pinged before it is up.
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
    num_pings: int = 0

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
        late = 4 * (self.replies[runner][:1] == [LATE])
        exchange = SimpleNamespace(remote=lambda *args: FakeCall(self._call(runner, *args), late))
        return SimpleNamespace(runner=runner, exchange=exchange, ping=SimpleNamespace(remote=self._ping))

    def _ping(self):
        self.num_pings -= 1
        return FakeCall(RESTARTS if self.num_pings > 0 else "pong")

    def set_actor_state(self, runner, healthy):
        self.healthy.discard(runner)
        self.questions[runner] = []

    def restore(self):
        if self.num_pings <= 0:
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
        if reply == LATE:
            reply = len(held)
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
        num_ended = reply if isinstance(reply, int) else 0
        ended = [held.pop(0) for _ in range(num_ended)]
        sampled = [SampledQuestion(ref, None) for ref in ended if ref.number not in self.raising]
        failure = Failure("ValueError: a bug", retry=True)
        failed = [FailedQuestion(ref, failure) for ref in ended if ref.number in self.raising]
        return RunnerAnswer(sampled, frozenset(held), {}, failed)


@pytest.fixture
def make_group(monkeypatch):
    clock = [0.0]

    def wait(calls, num_returns=1, timeout=None):
        ready = [call for call in calls if call.ready()]
        clock[0] += 0.0 if ready else timeout + 1
        return ready, [call for call in calls if call not in ready]

    monkeypatch.setattr(dispatch.ray, "wait", wait)
    monkeypatch.setattr(dispatch.ray, "get", fake_get)
    monkeypatch.setattr(dispatch.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: clock[0])

    def make(replies, max_weight_lag=0, num_evaluation_envs=2, **keys) -> tuple[FakeGroup, QuestionDispatcher]:
        group = FakeGroup(replies, clock)

        def restart(manager, runner):
            group.restarted.append(runner)
            manager.set_actor_state(runner, healthy=False)

        def kill(actor, no_restart):
            assert no_restart
            group.ended.add(actor.runner)

        monkeypatch.setattr(dispatch, "restart_env_runner", restart)
        monkeypatch.setattr(faults.ray, "kill", kill)
        common = {"question_deadline_s": 10.0, "env_runner_restore_timeout_s": 5.0, "max_weight_lag": max_weight_lag}
        config, evaluation_config = (
            ARPOConfig().update_from_dict(common | {"num_envs_per_env_runner": number} | keys)
            for number in (2, num_evaluation_envs)
        )
        return group, QuestionDispatcher(group, config, evaluation_config, restore=group.restore)

    return make


def collect(dispatcher: QuestionDispatcher, numbers, purpose=Purpose.TRAINING, **conditions) -> list[int]:
    sampled = dispatcher.collect(question_refs(numbers, purpose), SamplingConditions(weight_version=3, **conditions))
    assert all(question.ref.purpose == purpose for question in sampled)
    return [question.number for question in sampled]


def sample(dispatcher: QuestionDispatcher, numbers, purpose=Purpose.TRAINING, **conditions) -> list[int]:
    dispatcher.ask(question_refs(numbers, purpose))
    return collect(dispatcher, numbers, purpose, **conditions)


def test_questions_are_shared_out(make_group):
    group, dispatcher = make_group({1: [], 2: []})
    reference = RolloutReference({"search": 0.5}, 0.5)
    assert sample(dispatcher, range(5), rollout_reference=reference) == [0, 1, 2, 3, 4]
    assert group.asked == [(1, [0, 2]), (2, [1, 3]), (1, [4])]
    assert [id(given) for given in group.references] == [id(reference)] * 3
    assert group.timeouts == {dispatch.POLL_S}


def test_env_runners_that_go_on_during_the_update_are_given_all(make_group):
    group, dispatcher = make_group({1: [], 2: []}, max_weight_lag=1)
    dispatcher.ask(question_refs(range(8)))
    assert collect(dispatcher, range(4)) == [0, 1, 2, 3]
    assert group.asked == [(1, [0, 2, 4, 6]), (2, [1, 3, 5, 7])]
    # The next ones as well, though the questions that are waited for have all ended.
    dispatcher.ask(question_refs(range(8, 10)))
    assert collect(dispatcher, range(4, 8)) == [4, 5, 6, 7]
    assert group.asked[2:] == [(1, [8]), (2, [9])]
    assert group.timeouts == {dispatch.POLL_DURING_UPDATE_S}


def test_evaluation_goes_first_and_has_numbers_of_its_own(make_group):
    group, dispatcher = make_group({1: []})
    dispatcher.ask(question_refs(range(4)))
    assert sample(dispatcher, [0, 1], Purpose.EVALUATION) == [0, 1]
    assert collect(dispatcher, range(4)) == [0, 1, 2, 3]
    assert group.asked == [(1, [0, 1], [0, 1]), (1, [2, 3])]


def test_evaluation_has_environments_of_its_own(make_group):
    """Three for evaluation beside two for training, which questions 1 and 2 wait for."""
    group, dispatcher = make_group({1: [1, 0]}, num_evaluation_envs=3)
    dispatcher.ask(question_refs(range(3)))
    assert collect(dispatcher, [0]) == [0]
    assert sample(dispatcher, range(4), Purpose.EVALUATION) == [0, 1, 2, 3]
    assert group.asked == [(1, [0, 1]), (1, [], [0, 1, 2]), (1, [2], [3])]


@pytest.mark.parametrize(("replies", "num_questions", "asked", "restarted"), [
    pytest.param({1: [], 2: [1, 1, 1, 1]}, 9, [(1, [0, 2]), (2, [1, 3]), (1, [4, 5]), (2, [6]), (1, [7, 8])], [],
                 id="two at a time, one per environment; 2 ends one question a round, so that 1 gets more"),
    # Ray restarts an env runner that died by itself: killing it would only end the new process.
    pytest.param({1: [], 2: [DIES]}, 4, [(1, [0, 2]), (2, [1, 3]), (1, [1]), (2, [3])], [],
                 id="only the questions of a dead one are asked again"),
    pytest.param({1: [], 2: [RESTARTS]}, 4, [(1, [0, 2]), (2, [1, 3]), (1, [1]), (2, [3])], [], id="restarts"),
    pytest.param({1: [], 2: [HANGS]}, 2, [(1, [0]), (2, [1]), (1, [1])], [2], id="does not answer"),
    # 200 seconds a round; the limit is the deadline of 10 seconds and the slack of 300.
    pytest.param({1: [SILENT, SILENT]}, 2, [(1, [0, 1]), (1, [0, 1])], [1], id="ends no question"),
    pytest.param({1: [FORGETS]}, 2, [(1, [0, 1]), (1, [0, 1])], [], id="no longer has its questions"),
    pytest.param({1: [Failure("RuntimeError: engine died", retry=True)], 2: []}, 2,
                 [(1, [0]), (2, [1]), (1, [0])], [1], id="a broken engine"),
])  # fmt: skip
def test_what_an_env_runner_loses_is_asked_again(make_group, replies, num_questions, asked, restarted):
    group, dispatcher = make_group(replies)
    assert sample(dispatcher, range(num_questions)) == list(range(num_questions))
    assert (group.asked, group.restarted) == (asked, restarted)


def test_an_env_runner_gets_questions_again_as_soon_as_it_is_up(make_group):
    """The first one is down while the second one gets three more questions."""
    group, dispatcher = make_group({1: [DIES], 2: [1] * 9})
    group.num_pings = 3
    assert sample(dispatcher, range(10)) == list(range(10))
    assert group.asked == [
        (1, [0, 2]), (2, [1, 3]), (2, [0]), (2, [2]), (2, [4]), (1, [5, 6]), (2, [7]), (1, [8, 9]),
    ]  # fmt: skip


def test_a_task_without_a_question_is_named(make_group):
    group, dispatcher = make_group({1: []})
    group.foreach_env_runner = lambda *_args, **_kwargs: [0]
    with pytest.raises(DataError, match=r"^The environment has no question for evaluation \(num_questions=0\)\.$"):
        dispatcher.num_questions(Purpose.EVALUATION, 8)


def test_while_the_driver_does_something_else_no_env_runner_is_silent(make_group):
    """The second one is called, and has not ended its questions when the driver turns to a long update."""
    group, dispatcher = make_group({1: [], 2: [0, 0]}, max_weight_lag=1)
    dispatcher.ask(question_refs(range(4)))
    assert collect(dispatcher, [0]) == [0]
    group.clock[0] += 2000.0
    assert collect(dispatcher, [1, 2, 3]) == [1, 2, 3]
    assert group.restarted == []


def test_answers_that_are_on_their_way_after_a_long_update_are_no_silence(make_group):
    """The first one's answer is there, the second one's comes from another machine."""
    group, dispatcher = make_group({1: [1, 1], 2: [LATE]}, max_weight_lag=1)
    dispatcher.ask(question_refs(range(4)))
    assert collect(dispatcher, [0]) == [0]
    group.clock[0] += 2000.0
    assert collect(dispatcher, [1, 2, 3]) == [1, 2, 3]
    assert group.restarted == []


def test_nobody_waits_for_env_runners_that_are_not_to_be_restarted(make_group):
    group, dispatcher = make_group({1: [DIES]}, restart_failed_env_runners=False, env_runner_restore_timeout_s=1800.0)
    group.num_pings = 10**9
    with pytest.raises(RuntimeError, match="does not come back; 1 questions are missing"):
        sample(dispatcher, [0])
    assert group.clock[0] < 100.0


def test_an_env_runner_that_was_restarted_meanwhile_is_asked_only_what_it_lost(make_group):
    """It died during an update with questions 2 and 3 and has come back before anyone noticed."""
    group, dispatcher = make_group({1: [2, DIED_BEFORE]}, max_weight_lag=1)
    dispatcher.ask(question_refs(range(4)))
    assert collect(dispatcher, [0, 1]) == [0, 1]
    dispatcher.ask(question_refs(range(4, 6)))
    assert collect(dispatcher, [2, 3, 4, 5]) == [2, 3, 4, 5]
    assert group.asked == [(1, [0, 1, 2, 3]), (1, [4, 5]), (1, [2, 3])]


def test_questions_of_an_env_runner_that_died_unnoticed_are_asked_again(make_group):
    group, dispatcher = make_group({1: [], 2: [SILENT]})
    dispatcher.ask(question_refs(range(4)))
    assert collect(dispatcher, [0]) == [0]
    group.set_actor_state(2, healthy=False)
    assert collect(dispatcher, [1, 2, 3]) == [1, 2, 3]
    assert group.asked == [(1, [0, 2]), (2, [1, 3]), (1, [1, 3])]


def test_bad_data_is_raised_at_once(make_group):
    group, dispatcher = make_group({1: [Failure("train.parquet row 3: no answer", retry=False)], 2: []})
    with pytest.raises(ValueError, match=r"^train\.parquet row 3: no answer$"):
        sample(dispatcher, range(2))
    assert len(group.asked) == 2


def test_three_failures_in_a_row_of_every_env_runner_name_the_cause(make_group):
    _, dispatcher = make_group({1: [DIES] * 3, 2: [DIES] * 3})
    with pytest.raises(
        RuntimeError,
        match=r"Every env runner failed 3 times in a row; 12 questions are missing. Last cause: .*out of memory",
    ):
        sample(dispatcher, range(12))


def test_an_env_runner_that_fails_again_and_again_is_ended_and_the_others_go_on(make_group, caplog):
    failure = Failure("KeyError: 'a'", retry=True, traceback="in line 5 of mine.py")
    group, dispatcher = make_group({1: [], 2: [DIES, DIES, failure], 3: []})
    assert sample(dispatcher, range(12)) == list(range(12))
    assert group.ended == {2}
    told = [record.message for record in caplog.records if "its questions are sampled again" in record.message]
    assert len(told) == 3 and "out of memory" in told[0]
    assert told[2].endswith("env runner 2: KeyError: 'a'\nin line 5 of mine.py")


def test_a_question_that_raises_is_asked_three_times(make_group):
    group, dispatcher = make_group({1: []})
    group.raising = {1}
    assert sample(dispatcher, range(4)) == [0, 2, 3]
    assert dispatcher.take_given_up() == {QuestionRef(1): "ValueError: a bug"}
    assert dispatcher.take_given_up() == {}
    assert group.asked == [(1, [0, 1]), (1, [1, 2]), (1, [1, 3])]


def test_a_suspect_that_raises_is_asked_alone_again(make_group):
    """Question 1 is lost twice; then it raises, and its env runner dies for the third time."""
    group, dispatcher = make_group({1: [DIES, DIES, 1, 1, DIES]})
    group.raising = {1}
    assert sample(dispatcher, range(4)) == [0, 2, 3]
    assert dispatcher.take_given_up() == {QuestionRef(1): "ValueError: a bug"}
    assert group.asked == [(1, [0, 1]), (1, [0, 1]), (1, [0]), (1, [1]), (1, [1]), (1, [1]), (1, [1]), (1, [2, 3])]


@pytest.mark.parametrize(("number", "deadly", "runners"), [(8, 3, 2), (1, 0, 2), (8, 3, 1), (1, 0, 1)])
def test_a_question_that_kills_every_env_runner_is_given_up_and_no_other(make_group, number, deadly, runners):
    group, dispatcher = make_group({runner: [] for runner in range(1, runners + 1)})
    group.deadly = {deadly}
    assert sample(dispatcher, range(number)) == [n for n in range(number) if n != deadly]
    assert list(dispatcher.take_given_up()) == [QuestionRef(deadly)]


def test_what_is_missing_in_a_batch_that_is_read_ahead_is_told_with_that_batch(make_group):
    group, dispatcher = make_group({1: []}, max_weight_lag=1)
    group.raising = {3}
    dispatcher.ask(question_refs(range(4)))
    assert collect(dispatcher, range(2)) == [0, 1]
    assert dispatcher.take_given_up() == {}
    assert collect(dispatcher, range(2, 4)) == [2]
    assert list(dispatcher.take_given_up()) == [QuestionRef(3)]


def test_failures_that_are_not_in_a_row_do_not_add_up(make_group):
    _, dispatcher = make_group({1: [DIES, 2, DIES, 2, DIES, 2]})
    for first in (0, 2, 4):
        assert sample(dispatcher, range(first, first + 2)) == [first, first + 1]


def test_dropped_questions_can_be_asked_again(make_group):
    group, dispatcher = make_group({1: [1]})
    dispatcher.ask(question_refs(range(3)))
    collect(dispatcher, [0])
    dispatcher.drop_all()
    assert group.calls == ["drop_questions"]
    assert sample(dispatcher, range(1, 3)) == [1, 2]
    assert group.asked == [(1, [0, 1]), (1, [1, 2])]


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([None, None], None),
        ([None], "1 of 2 env runners did not free GPU memory within 600 s."),
        (
            [None, Failure("Env runner 2 cannot sleep: it has no GPU.", retry=True)],
            "Env runner 2 cannot sleep: it has no GPU.",
        ),
    ],
)
def test_no_update_begins_while_an_engine_has_its_gpu(make_group, monkeypatch, answers, sentence):
    group, dispatcher = make_group({1: [], 2: []})
    monkeypatch.setattr(group, "foreach_env_runner", lambda *_args, **_kwargs: answers)
    if sentence is None:
        return dispatcher.sleep(1)
    with pytest.raises(RuntimeError) as raised:
        dispatcher.sleep(1)
    assert str(raised.value) == sentence
