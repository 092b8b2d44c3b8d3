"""Stopped runs go on where they were: the same questions, weights and forks; also while the next ones are sampled."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.core.figures import oldest_weights
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import SampledQuestion, SamplingConditions
from rllib_arpo.rollout.question_stream import QuestionStream, weight_lag
from tests.helpers.scripted_env import ANSWER, TOOL
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.helpers.weights import LORA, MODULE, learner_weights, load
from tests.integration.conftest import record_batches


@pytest.fixture
def running(scripted):
    """Both ways in which earlier questions count; whatever the timing, the same trees."""
    return scripted.adaptive_rollout(
        num_rollouts=8,
        num_initial_rollouts=4,
        branch_threshold=0.5,
        entropy_baseline="running",
        branch_width=1,
        pre_monitoring_sensitivity=4.0,
        deterministic=True,
    ).language_model(
        engine_kwargs={"vocab_size": 256, "seed": 5, "replies": [[7, 1], [8, 9, 1], [9, 1], [7, 2], [8, 8, 2]]}
    )


def numbers(batches) -> list[list[int]]:
    return [[sampled.number for sampled in batch] for batch in batches]


def questions(batches) -> list[list[str]]:
    return [[sampled.tree.question_id for sampled in batch] for batch in batches]


def trees(batches) -> list[list]:
    """Per batch and question: (agent id, stop reason, [(decision, tokens of its window)]) of every trajectory."""
    return [
        [
            [
                (t.agent_id, str(t.stop_reason), [(turn.decision, len(turn.entropies)) for turn in t.turns])
                for t in sampled.tree.trajectories
            ]
            for sampled in batch
        ]
        for batch in batches
    ]


def assert_near(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], atol: float = 1e-7) -> None:
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=atol)


def differ(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return any(not np.array_equal(one[name], other[name]) for name in one)


def test_a_resumed_run_and_env_runners_of_their_own_go_on_as_the_run_itself(running, built, tmp_path):
    """Also by which pass rates they draw their questions."""
    running.training(prioritized_share=0.5)
    algorithm = built(running.copy(copy_frozen=False))
    batches = record_batches(algorithm)
    algorithm.train()
    algorithm.train()
    path, state = algorithm.save_to_path(str(tmp_path / "checkpoint")), algorithm.get_state()
    before, seconds = learner_weights(algorithm), algorithm._time_total
    algorithm.train()
    uninterrupted, alone = learner_weights(algorithm), trees(batches)
    asked = questions(batches)
    assert [new for _again, new in asked] == ["q1", "q2", "q3"]
    assert asked[1][0] in asked[0] and asked[2][0] in {*asked[0], *asked[1]}
    assert differ(before, uninterrupted)
    decisions = [d for iteration in alone for tree in iteration for _, _, own in tree for d, _ in own if d is not None]
    assert any(d.children for d in decisions)
    # From the second batch on the rise is against earlier questions, not against the question's own opening: against
    # so many nats a token, however many tokens a window has.
    nodes = [(d, n) for tree in alone[1] for _, _, own in tree for d, n in own if d]
    assert len({n for _, n in nodes}) > 1
    assert len({round((d.level - d.delta) / n, 9) for d, n in nodes}) == 1

    resumed = ARPO.from_checkpoint(path)
    assert resumed._time_total == seconds > 0
    goes_on = record_batches(resumed)
    resumed.train()
    assert (questions(goes_on), trees(goes_on)) == (asked[2:], alone[2:])
    assert_near(learner_weights(resumed), uninterrupted)
    resumed.stop()

    two = built(running.env_runners(num_env_runners=2))
    of_two = record_batches(two)
    for _ in range(3):
        two.train()
    assert trees(of_two) == alone
    two.set_state(state)
    two.train()
    assert (questions(of_two[3:]), trees(of_two[3:])) == (asked[2:], alone[2:])


def test_an_automatic_threshold_is_of_the_batch_before(running, built):
    running.adaptive_rollout(entropy_baseline="initial", pre_monitoring_sensitivity=None)
    algorithm = built(running.adaptive_rollout(branch_threshold="auto", branch_share=0.4))
    batches = record_batches(algorithm)
    for _ in range(3):
        algorithm.train()
    nodes = [[(name, d) for tree in batch for name, _, own in tree for d, _ in own if d] for batch in trees(batches)]
    rises = [0.0, *(np.quantile([d.delta for name, d in batch if "." not in name], 0.6) for batch in nodes)]
    for batch, rise in zip(nodes, rises, strict=False):
        decided = [d for _, d in batch if d.eligible]
        assert [d.children > 0 for d in decided] == [d.delta > rise for d in decided]
        assert {d.children > 0 for d in decided} == {True, False}


def test_a_resumed_run_with_lora_takes_the_same_step(scripted, built, tmp_path):
    algorithm = built(scripted.language_model(lora=LORA).training(kl_coeff=0.1))
    start = learner_weights(algorithm)
    algorithm.train()
    checkpoint = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    assert (Path(checkpoint) / MODULE / "adapter").is_dir()
    before = learner_weights(algorithm)
    algorithm.train()
    uninterrupted = learner_weights(algorithm)
    algorithm.save_model(tmp_path / "saved", dtype="bfloat16")
    assert str(load(tmp_path / "saved").dtype) == "torch.bfloat16"
    assert differ(start, before) and differ(before, uninterrupted)

    resumed = ARPO.from_checkpoint(checkpoint)
    assert_near(learner_weights(resumed), before, atol=0.0)
    resumed.train()
    assert_near(learner_weights(resumed), uninterrupted)
    resumed.stop()


def test_another_checkpoint_of_the_same_age_reaches_the_engine_and_a_damaged_one_none(scripted, built, tmp_path):
    one = built(scripted)
    one.train()
    path = one.save_to_path(str(tmp_path / "one"))
    expected = learner_weights(one)
    other = built(scripted.copy(copy_frozen=False).training(lr=0.05))
    other.train()
    assert other._weight_version == 1
    other.restore_from_path(path)
    assert_near(other.env_runner.engine.weights, expected, atol=0.0)
    for name in ("algorithm_state.pkl", "learner_group/learner/state.pkl", "checksums.json"):
        saved = (tmp_path / "one" / name).read_bytes()
        (tmp_path / "one" / name).write_bytes(bytes([saved[0] ^ 1]) + saved[1:])
        with pytest.raises(ValueError, match=r"is (not the file that was saved|missing)"):
            other.restore_from_path(path)
        (tmp_path / "one" / name).write_bytes(saved)
    assert_near(learner_weights(other), expected, atol=0.0)


@pytest.fixture
def overlapped(scripted):
    """One env runner, lag 1; tools of agent "1" take half a second, so that its questions outlast an update."""
    scripted.environment(env_config={"delays": {("1", turn): 0.5 for turn in range(20)}})
    scripted.language_model(engine_kwargs={"vocab_size": 256, "replies": [[7, TOOL], [8, TOOL], [9, ANSWER]]})
    return scripted.env_runners(num_env_runners=1).adaptive_rollout(max_weight_lag=1)


def versions(question) -> set[int]:
    turns = [turn for t in question.tree.trajectories for turn in t.turns]
    return set(np.concatenate([turn.weight_versions for turn in turns]).tolist())


def test_questions_come_in_order_and_are_at_most_one_update_old(overlapped, built, tmp_path):
    """Also when their env runner was lost sight of, and in a run that is resumed or restored."""
    algorithm = built(overlapped)
    batches = record_batches(algorithm)
    lags = [algorithm.train()["env_runners"]["weight_lag_max"] for _ in range(5)]
    evaluation = algorithm.evaluate()["env_runners"]
    assert (evaluation["num_episodes"], len(batches)) == (3, 5)
    # Its process lives on; its questions are put back, and are not sampled twice.
    group = algorithm.env_runner_group
    assert group.foreach_env_runner(lambda runner: runner._questions is not None, local_env_runner=False) == [True]
    group._worker_manager.set_actor_state(1, healthy=False)
    assert algorithm.restore_env_runners(group) == [1]
    assert group.foreach_env_runner(lambda runner: runner._questions is None, local_env_runner=False) == [True]
    algorithm.train()
    assert numbers(batches) == [[2 * i, 2 * i + 1] for i in range(6)]
    assert lags[0] == 0
    assert max(lags) == 1
    # Batch i is trained by update i, when the weights have version i.
    assert all(i - 1 <= v <= i for i, batch in enumerate(batches) for q in batch for v in versions(q))
    # A slow trajectory goes on with the weights that arrive in its middle.
    assert any(len(versions(q)) == 2 for batch in batches for q in batch)

    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.stop()
    resumed = ARPO.from_checkpoint(path)
    batches = record_batches(resumed)
    resumed.train()
    # Restored in the middle of its own rollouts, it starts from the checkpoint's questions again.
    resumed.restore_from_path(path)
    restored = resumed._weight_version
    resumed.train()
    resumed.stop()
    assert numbers(batches) == [[12, 13], [12, 13]]
    assert [versions(q) for q in batches[1]] == [{restored}, {restored}]
    assert all(max(versions(q)) < restored for q in batches[0])


def sampled_by(version: int) -> QuestionTree:
    """A tree of one token, which weights of this version sampled."""
    turn = replace(make_turn([3]), weight_versions=np.array([version], np.int32))
    return make_tree([2], [make_trajectory("0", [turn])])


class FakeDispatcher:
    """Answers with samples of these oldest weights, in turn; a question that has none left is given up."""

    def __init__(self, oldest: dict[int, list[int]]):
        self.asked, self.oldest = [], oldest
        self.missing = {}

    def ask(self, refs):
        self.asked.append([ref.number for ref in refs])

    def collect(self, refs, conditions):
        assert conditions.weight_version == 5
        self.missing |= {ref: "it failed" for ref in refs if not self.oldest[ref.number]}
        with_sample = [ref for ref in refs if self.oldest[ref.number]]
        return [SampledQuestion(ref, TreeEpisode(sampled_by(self.oldest[ref.number].pop(0)))) for ref in with_sample]

    def take_given_up(self):
        missing, self.missing = self.missing, {}
        return missing


@pytest.mark.parametrize(
    ("lag", "oldest", "kept", "given_up"),
    [(1, [3, 5], [(0, 4), (1, 5)], 0), (1, [3], [(0, 4)], 1), (2, [2, 5], [(0, 4), (1, 5)], 0)],
)
def test_questions_over_the_bound_are_asked_again(lag, oldest, kept, given_up):
    """The tokens of one are an update older than the bound; if it is given up then, it is left out."""
    config = ARPOConfig().training(questions_per_batch=2).adaptive_rollout(max_weight_lag=lag)
    dispatcher = FakeDispatcher({0: [4], 1: oldest})
    batch = QuestionStream(dispatcher, config).next_batch(SamplingConditions(weight_version=5))
    assert [(q.number, oldest_weights(q.tree)) for q in batch.questions] == kept
    assert [weight_lag(q, 5) for q in batch.questions] == [1, 0][: len(kept)]
    assert dispatcher.asked == [[*range(2 * (1 + lag))], [1]]
    assert (batch.num_requeued, batch.num_given_up) == (1, given_up)


def test_if_no_question_can_replace_those_without_a_signal_they_stay():
    config = ARPOConfig().training(questions_per_batch=2, max_resample_rounds=1)
    batch = QuestionStream(FakeDispatcher({0: [5], 1: [5], 2: [], 3: []}), config).next_batch(
        SamplingConditions(weight_version=5)
    )
    assert ([q.number for q in batch.questions], batch.num_given_up, batch.num_dropped) == ([0, 1], 2, 0)


def test_the_next_batch_is_in_flight_after_rounds_that_replace_questions():
    """All questions have equal rewards, so two rounds replace both: otherwise they would take what was asked ahead."""
    config = ARPOConfig().training(questions_per_batch=2, max_resample_rounds=2).adaptive_rollout(max_weight_lag=1)
    dispatcher = FakeDispatcher({number: [5] for number in range(8)})
    stream = QuestionStream(dispatcher, config)
    batch = stream.next_batch(SamplingConditions(weight_version=5))
    assert (batch.resample_rounds, stream.next_number) == (2, 6)
    assert dispatcher.asked == [[0, 1, 2, 3], [4, 5], [6, 7]]
