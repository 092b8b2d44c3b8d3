"""`max_weight_lag`: the next questions are sampled during the update, and nothing about them is lost."""

from dataclasses import replace

import numpy as np
import pytest
from ray import tune

from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.core.figures import oldest_weights
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import SampledQuestion, SamplingConditions
from rllib_arpo.rollout.question_stream import QuestionStream, weight_lag
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER, TOOL
from tests.helpers.trees import make_trajectory, make_tree, make_turn


@pytest.fixture
def overlapped(ray_cluster, model_folder):
    """One env runner, lag 1; tools of agent "1" take half a second, so that its questions outlast an update."""
    tune.register_env("Faulty-v0", FaultyEnv)
    replies = [[7, TOOL], [8, TOOL], [9, ANSWER]]
    delays = {("1", turn): 0.5 for turn in range(20)}
    config = small_config(model_folder, vocab_size=256, replies=replies)
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}, "delays": delays})
    config.evaluation(evaluation_config={"env_config": {}})
    return config.env_runners(num_env_runners=1).adaptive_rollout(max_weight_lag=1)


def record_batches(algorithm) -> list[list]:
    batches = []
    update = algorithm._update
    algorithm._update = lambda batch: (batches.append(batch), update(batch))
    return batches


def versions(question) -> set[int]:
    turns = [turn for t in question.tree.trajectories for turn in t.turns]
    return set(np.concatenate([turn.weight_versions for turn in turns]).tolist())


def test_questions_come_in_order_and_are_at_most_one_update_old(overlapped):
    algorithm = overlapped.build_algo()
    batches = record_batches(algorithm)
    lags = [algorithm.train()["env_runners"]["weight_lag_max"] for _ in range(5)]
    evaluation = algorithm.evaluate()["env_runners"]
    batches_after = len(batches)
    algorithm.train()
    algorithm.stop()
    assert [q.number for batch in batches for q in batch] == list(range(12))
    assert lags[0] == 0
    assert max(lags) == 1
    # Batch i is trained by update i, when the weights have version i.
    assert all(i - 1 <= v <= i for i, batch in enumerate(batches) for q in batch for v in versions(q))
    # A slow trajectory goes on with the weights that arrive in its middle.
    assert any(len(versions(q)) == 2 for batch in batches for q in batch)
    assert (evaluation["num_episodes"], batches_after) == (3, 5)


def test_two_env_runners_are_at_most_two_updates_ahead(overlapped):
    algorithm = overlapped.env_runners(num_env_runners=2).adaptive_rollout(max_weight_lag=2).build_algo()
    batches = record_batches(algorithm)
    results = [algorithm.train()["env_runners"] for _ in range(5)]
    algorithm.stop()
    assert [[q.number for q in batch] for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert all(i - 2 <= v <= i for i, batch in enumerate(batches) for q in batch for v in versions(q))
    assert [result["weight_lag_max"] for result in results[:2]] == [0, 1]
    assert all(result["questions_requeued"] == 0 for result in results)


def test_an_env_runner_that_was_lost_sight_of_comes_back_without_questions(overlapped):
    """Its process lived on; its questions were put back, and are not sampled twice."""
    algorithm = overlapped.build_algo()
    batches = record_batches(algorithm)
    algorithm.train()
    group = algorithm.env_runner_group
    assert group.foreach_env_runner(lambda runner: runner._questions is not None, local_env_runner=False) == [True]
    group._worker_manager.set_actor_state(1, healthy=False)
    assert algorithm.restore_env_runners(group) == [1]
    assert group.foreach_env_runner(lambda runner: runner._questions is None, local_env_runner=False) == [True]
    algorithm.train()
    algorithm.stop()
    assert [[q.number for q in batch] for batch in batches] == [[0, 1], [2, 3]]


def test_a_resumed_run_asks_again_what_was_under_way(overlapped, tmp_path):
    algorithm = overlapped.build_algo()
    algorithm.train()
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
    assert [[q.number for q in batch] for batch in batches] == [[2, 3], [2, 3]]
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

    def take_missing(self):
        missing, self.missing = self.missing, {}
        return missing


CONFIG = ARPOConfig().training(questions_per_batch=2).adaptive_rollout(max_weight_lag=1)


def test_questions_over_the_bound_are_asked_again():
    """A question whose tokens are two updates old, with a bound of one, is asked again and counted."""
    dispatcher = FakeDispatcher({0: [4], 1: [2, 5]})
    batch = QuestionStream(dispatcher, CONFIG).next_batch(SamplingConditions(weight_version=5))
    assert [(q.number, oldest_weights(q.tree)) for q in batch.questions] == [(0, 4), (1, 5)]
    assert dispatcher.asked == [[0, 1, 2, 3], [1]]
    assert [weight_lag(q, 5) for q in batch.questions] == [1, 0]
    assert batch.num_requeued == 1


def test_a_question_over_the_bound_that_is_given_up_when_it_is_asked_again_is_left_out():
    dispatcher = FakeDispatcher({0: [4], 1: [2]})
    batch = QuestionStream(dispatcher, CONFIG).next_batch(SamplingConditions(weight_version=5))
    assert [q.number for q in batch.questions] == [0]
    assert dispatcher.asked == [[0, 1, 2, 3], [1]]
    assert (batch.num_requeued, batch.num_given_up) == (1, 1)
