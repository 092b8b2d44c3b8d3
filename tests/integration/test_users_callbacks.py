"""Callbacks of users in a whole algorithm: what they log, when they raise, what they are told."""

from pathlib import Path

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_arpo.record.read import questions, record_files
from rllib_arpo.rollout.messages import Purpose
from rllib_arpo.rollout.metric_table import BATCH_METRICS, OWN_NAMES

#: Metrics of forks and tools, which this run does not have.
OF_FORKS = {"fork_depth_mean", "fork_depth_p10", "fork_depth_p90", "fork_rate", "tools"}


class Logging(RLlibCallback):
    """Logs under a name of its own."""

    def on_episode_end(self, *, episode, env, env_index, env_runner, metrics_logger, **kwargs):
        assert f"q{env.question}" == episode.id_
        assert any(env_index < len(pool) and pool[env_index] is env for pool in env_runner._envs.values())
        metrics_logger.log_value("my_turns", len(episode.agent_episodes), reduce="mean")


def test_what_callbacks_log_is_reported_beside_the_metrics_of_arpo(built, scripted):
    algorithm = built(scripted.callbacks(Logging))
    algorithm.env_runner.sample()
    assert algorithm.env_runner.get_metrics().keys() - OWN_NAMES == {"my_turns"}
    rollout = algorithm.train()["env_runners"]
    assert rollout["my_turns"] == 4
    assert rollout.keys() | OF_FORKS == OWN_NAMES | {"my_turns"}
    evaluation = algorithm.evaluate()["env_runners"]
    assert evaluation["my_turns"] == 1
    assert evaluation.keys() - OWN_NAMES == {"my_turns"}
    assert rollout.keys() - evaluation.keys() == {metric.name.split("/")[0] for metric in BATCH_METRICS}
    assert algorithm.train()["env_runners"]["my_turns"] == 4
    # Nothing waits for an evaluation that may never come.
    assert algorithm._dispatcher._metrics == {Purpose.TRAINING: [], Purpose.EVALUATION: []}


@pytest.mark.parametrize("callback", ["on_algorithm_init", "on_train_result", "on_evaluate_start", "on_evaluate_end"])
def test_a_callback_on_the_driver_logs_under_names_of_its_own(built, scripted, callback):
    def log(*, metrics_logger, **_):
        metrics_logger.log_value(("env_runners", "mine"), 7.0, reduce="sum")

    def take(*, metrics_logger, **_):
        metrics_logger.log_value(("learners", "default_policy", "entropy"), 100.0)

    scripted.evaluation(evaluation_interval=1)
    algorithm = built(scripted.copy(copy_frozen=False).callbacks(**{callback: log}))
    # `on_train_result` and `on_evaluate_end` come when the iteration's result is made.
    assert 7.0 in [algorithm.train()["env_runners"].get("mine") for _ in range(2)]
    taking = scripted.copy(copy_frozen=False).callbacks(**{callback: take})
    with pytest.raises(ValueError, match=rf"^A callback, {callback}, logs under 'learners/default_policy/entropy', a "):
        built(taking).train()


@pytest.mark.parametrize("num_env_runners", [0, 1])
@pytest.mark.parametrize("callback", ["on_episode_end", "on_sample_end"])
def test_a_callback_that_raises_ends_the_run_at_once(built, scripted, tmp_path, num_env_runners, callback):
    called = tmp_path / "called"

    def slip(**kwargs):
        with called.open("a") as file:
            file.write("once ")
        raise KeyError("no_such_key")

    scripted.callbacks(**{callback: slip}).env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=1)
    algorithm = built(scripted)
    with pytest.raises(ValueError, match=rf"^A callback, {callback}, raised KeyError: 'no_such_key'\.$"):
        algorithm.train()
    assert called.read_text() == "once "


def test_a_callback_that_spoils_a_reward_is_named(built, scripted):
    def spoil(*, episode, **_):
        episode.agent_episodes["2"].rewards.data[-1] = float("inf")

    algorithm = built(scripted.callbacks(on_episode_end=spoil))
    sentence = r"^A callback, on_episode_end, left a reward of question 'q\d', trajectory 2, that must be a f"
    with pytest.raises(ValueError, match=sentence):
        algorithm.train()


@pytest.mark.parametrize("num_env_runners", [0, 1])
@pytest.mark.parametrize("callback", ["on_episode_end", "on_sample_end"])
def test_a_reward_that_a_callback_shapes_is_that_of_the_tree(built, scripted, num_env_runners, callback):
    """The update, the metrics and the record read it: all trajectories of a question have 1 or 0, and now 3 or 2."""

    def shape(*, episode=None, samples=(), **_):
        for one in [episode] if episode else samples:
            for agent in one.agent_episodes.values():
                agent.rewards[-1] += 2.0

    scripted.callbacks(**{callback: shape}).env_runners(num_env_runners=num_env_runners)
    algorithm = built(scripted.reporting(record_share=1.0))
    rollout = algorithm.train()["env_runners"]
    returns = {earned for question in algorithm.last_sampled for earned in question.tree.returns()}
    assert returns == {2.0, 3.0}
    assert (rollout["episode_return_min"], rollout["episode_return_max"]) == (2.0, 3.0)
    algorithm.stop()
    (file,) = record_files(Path(algorithm.logdir) / "trees")
    assert {earned for question in questions(file) for earned in question.tree.returns()} == returns


def test_a_callback_may_train(built, scripted):
    def train(*, algorithm, result, **_):
        if result["training_iteration"] == 1:
            result["second"] = algorithm.train()["training_iteration"]

    assert built(scripted.callbacks(on_train_result=train)).train()["second"] == 2


class Places(RLlibCallback):
    """Keeps where environments were made."""

    made: list = []  # noqa: RUF012

    def on_environment_created(self, *, env, env_context, **kwargs):
        Places.made.append((env_context.worker_index, env_context.vector_index, env_context.get("split")))


def test_every_environment_is_told_with_its_place(built, scripted):
    Places.made.clear()
    algorithm = built(scripted.callbacks(Places).evaluation(evaluation_config={"env_config": {"split": "test"}}))
    algorithm.evaluate()
    assert Places.made == [(0, 0, None), (0, 1, None), (0, 0, "test"), (0, 1, "test")]


class Recreated(RLlibCallback):
    """Keeps which env runners came back."""

    indices: list = []  # noqa: RUF012

    def on_env_runners_recreated(self, *, env_runner_indices, is_evaluation, **kwargs):
        Recreated.indices.append((list(env_runner_indices), is_evaluation))


def test_an_env_runner_that_comes_back_is_told(built, scripted, tmp_path):
    Recreated.indices.clear()
    scripted.environment(env_config={"die_at": 1, "marker": str(tmp_path / "died"), "rewards": {"0": 1.0}})
    functions = []
    scripted.callbacks(
        Recreated, on_env_runners_recreated=lambda *, env_runner_indices, **_: functions.append(env_runner_indices)
    )
    algorithm = built(scripted.env_runners(num_env_runners=1))
    algorithm.train()
    assert Recreated.indices == [([1], False)]
    assert functions == [[1]]
