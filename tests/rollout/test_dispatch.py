"""Questions over env runners that die, hang, or raise: every question comes back, or the cause does."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from rllib_arpo.rollout import dispatch
from rllib_arpo.rollout.questions import Rollout, RolloutError, SampledQuestion

CONFIG = SimpleNamespace(
    in_evaluation=False, num_envs_per_env_runner=2, question_deadline_s=10.0, env_runner_restore_timeout_s=5.0
)
HANGS = "hangs"


@dataclass
class FakeOutcome:
    actor_id: int
    value: object
    ok: bool = True

    def get(self):
        return self.value


@dataclass
class FakeGroup:
    """Env runners by script: `replies[runner]` has, per call, an exception (it died), HANGS, or None (it works)."""

    replies: dict[int, list]
    healthy: set[int] = field(default_factory=set)
    asked: list[tuple[int, list[int]]] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.healthy = set(self.replies)
        self._worker_manager = self

    def num_remote_env_runners(self):
        return len(self.replies)

    def healthy_env_runner_ids(self):
        return sorted(self.healthy)

    def actors(self):
        return {runner: runner for runner in self.replies}

    def set_actor_state(self, runner, healthy):
        self.healthy.discard(runner)

    def restore(self):
        self.healthy = set(self.replies)

    def foreach_actor(self, func, *, kwargs, remote_actor_ids, timeout_seconds):
        assert func == "rollout"
        self.timeouts.append(timeout_seconds)
        return [o for r, k in zip(remote_actor_ids, kwargs, strict=True) if (o := self._call(r, **k)) is not None]

    def _call(self, runner, numbers, evaluation, weight_version):
        self.asked.append((runner, numbers))
        reply = self.replies[runner].pop(0) if self.replies[runner] else None
        if reply == HANGS:
            return None
        if isinstance(reply, Exception):
            self.healthy.discard(runner)
            return FakeOutcome(runner, reply, ok=False)
        if reply is not None:
            return FakeOutcome(runner, reply)
        return FakeOutcome(runner, Rollout([SampledQuestion(n, None, None) for n in numbers], {}))


@pytest.fixture
def sample(monkeypatch):
    monkeypatch.setattr(dispatch.time, "sleep", lambda seconds: None)

    def run(group: FakeGroup, numbers) -> list[int]:
        monkeypatch.setattr(dispatch.ray, "kill", lambda actor, no_restart: group.killed.append(actor))
        rollouts = dispatch.sample_on_group(group, numbers, CONFIG, weight_version=3, restore=group.restore)
        return sorted(question.number for rollout in rollouts for question in rollout.questions)

    return run


def test_questions_are_shared_out(sample):
    group = FakeGroup({1: [], 2: []})
    assert sample(group, range(5)) == [0, 1, 2, 3, 4]
    assert group.asked == [(1, [0, 2, 4]), (2, [1, 3])]


def test_fewer_questions_than_env_runners(sample):
    group = FakeGroup({1: [], 2: [], 3: []})
    assert sample(group, [7]) == [7]
    assert group.asked == [(1, [7])]


def test_the_time_limit_covers_the_waves_of_questions(sample):
    group = FakeGroup({1: []})
    sample(group, range(5))
    assert group.timeouts == [3 * 10.0 + dispatch.HANG_SLACK_S]


def test_only_the_questions_of_a_dead_env_runner_are_asked_again(sample):
    group = FakeGroup({1: [], 2: [RuntimeError("killed")]})
    assert sample(group, range(4)) == [0, 1, 2, 3]
    assert group.asked == [(1, [0, 2]), (2, [1, 3]), (1, [1]), (2, [3])]


def test_a_hung_env_runner_is_restarted(sample):
    group = FakeGroup({1: [], 2: [HANGS]})
    assert sample(group, range(2)) == [0, 1]
    assert group.killed == [2]


def test_an_env_runner_with_a_broken_engine_is_restarted(sample):
    group = FakeGroup({1: [RolloutError("RuntimeError: engine died", "trace", retry=True)], 2: []})
    assert sample(group, range(2)) == [0, 1]
    assert group.killed == [1]


def test_bad_data_is_raised_at_once(sample):
    group = FakeGroup({1: [RolloutError("train.parquet row 3: no answer", "trace", retry=False)], 2: []})
    with pytest.raises(ValueError, match=r"^train\.parquet row 3: no answer$"):
        sample(group, range(2))
    assert len(group.asked) == 2


def test_three_failures_in_a_row_name_the_cause(sample):
    group = FakeGroup({1: [RuntimeError("out of memory")] * 3})
    with pytest.raises(
        RuntimeError, match=r"failed 3 times in a row; 2 questions are missing. Last cause: .*out of memory"
    ):
        sample(group, range(2))


def test_failures_that_are_not_in_a_row_do_not_add_up(sample):
    dies = RuntimeError("killed")
    group = FakeGroup({1: [dies, dies, None]})
    assert sample(group, range(2)) == [0, 1]
    group = FakeGroup({1: [dies, dies, None]})
    assert sample(group, range(2)) == [0, 1]
