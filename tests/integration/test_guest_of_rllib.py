"""Things that users of RLlib do with any algorithm: set weights, take the module, reuse trials, call back, stop."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

from rllib_arpo import ARPO
from rllib_arpo.learner.learner_group import ARPOLearnerGroup
from rllib_arpo.record.read import questions, record_files
from rllib_arpo.rollout.messages import Purpose
from rllib_arpo.rollout.metric_table import BATCH_METRICS, OWN_NAMES
from rllib_arpo.rollout.seeds import trial_seed
from tests.helpers.configs import scripted_config
from tests.helpers.weights import learner_weights

NAME = "model.norm.weight"


def weights_of(algorithm) -> dict:
    state = algorithm.learner_group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
    return state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]


def doubled(algorithm) -> dict:
    weights = weights_of(algorithm)[DEFAULT_MODULE_ID]
    return {DEFAULT_MODULE_ID: {name: 2 * value if name.endswith(NAME) else value for name, value in weights.items()}}


def change_in_each_learner(algorithm) -> None:
    def double(learner) -> None:
        with torch.no_grad():
            learner.module[DEFAULT_MODULE_ID].causal_lm.get_parameter(NAME).mul_(2.0)

    algorithm.learner_group.foreach_learner(double)


CHANGES = {
    "group": lambda algorithm: algorithm.learner_group.set_weights(doubled(algorithm)),
    "algorithm": lambda algorithm: algorithm.set_weights(doubled(algorithm)),
    "module": lambda algorithm: algorithm.get_module().set_state(doubled(algorithm)[DEFAULT_MODULE_ID]),
    "each learner": change_in_each_learner,
}


@pytest.fixture(scope="module")
def guest(ray_cluster, model_folder) -> Iterator[ARPO]:
    algorithm = scripted_config(model_folder).training(kl_coeff=0.1).build_algo()
    yield algorithm
    algorithm.stop()


def weights_at_the_first_request(algorithm, methods) -> np.ndarray:
    """Calls the methods one after the other. Returns the engine's weights when the first request came."""
    engine, seen = algorithm.env_runner.engine, []
    submit = engine.submit
    engine.submit = lambda request: (seen.append(engine.weights[NAME].copy()), submit(request))
    for method in methods:
        getattr(algorithm, method)()
    engine.submit = submit
    return seen[0]


@pytest.mark.parametrize("method", ["evaluate", "train"])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_the_user_changes_reach_the_engine(guest, change, method):
    before = copy.deepcopy(weights_of(guest))
    CHANGES[change](guest)
    seen = weights_at_the_first_request(guest, [method])
    np.testing.assert_array_equal(seen, 2 * before[DEFAULT_MODULE_ID][NAME])
    guest.set_weights(before)


def test_metrics_that_users_of_rllib_look_for(guest):
    guest.train()
    result = guest.train()
    rollout, learner = result["env_runners"], result["learners"]["default_policy"]
    episodes = [s.episode for s in guest.last_sampled]
    assert rollout["episode_len_max"] == max(map(len, episodes))
    assert rollout["episode_len_mean"] == sum(map(len, episodes)) / 2
    assert (rollout["episode_return_min"], rollout["episode_return_max"]) == (0.0, 1.0)
    turns = sum(len(one) for episode in episodes for one in episode.agent_episodes.values())
    assert rollout["num_module_steps_sampled"]["default_policy"] == rollout["num_env_steps_sampled"] == turns
    assert rollout["num_module_steps_sampled_lifetime"]["default_policy"] > turns
    for name in ("num_env_steps_sampled", "generated_tokens", "tool_calls_executed"):
        assert rollout[f"{name}_lifetime"] >= rollout[name]
    assert learner["kl"] > 0
    assert learner["total_loss"] != learner["policy_loss"]


def check_get_module(algorithm) -> None:
    """It gives what is trained."""
    views = algorithm.get_module().weight_views()
    for name, value in learner_weights(algorithm).items():
        np.testing.assert_array_equal(views[name], value)
    assert algorithm.get_module("nobody") is None


def test_get_module_of_a_learner_in_this_process(guest):
    check_get_module(guest)


def test_the_state_of_a_learner_in_another_process_does_not_pass_through_the_driver(
    scripted, built, tmp_path, monkeypatch
):
    """Neither when a checkpoint is written nor when it is read."""
    passed = []
    get_state, set_state = ARPOLearnerGroup.get_state, ARPOLearnerGroup.set_state

    def watch(name: str, state: dict) -> dict:
        if state.get(COMPONENT_LEARNER, {}).get(COMPONENT_RL_MODULE):
            passed.append(name)
        return state

    monkeypatch.setattr(ARPOLearnerGroup, "get_state", lambda *args, **kw: watch("get_state", get_state(*args, **kw)))
    monkeypatch.setattr(ARPOLearnerGroup, "set_state", lambda self, state: set_state(self, watch("set_state", state)))
    algorithm = built(scripted.learners(num_learners=1))
    algorithm.train()
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    assert passed == []
    before = learner_weights(algorithm)
    assert passed == ["get_state"]  # The test itself.
    check_get_module(algorithm)
    change_in_each_learner(algorithm)
    passed.clear()
    algorithm.restore_from_path(path)
    assert passed == []
    np.testing.assert_array_equal(learner_weights(algorithm)[NAME], before[NAME])
    np.testing.assert_array_equal(algorithm.env_runner.engine.weights[NAME], before[NAME])


def test_a_checkpoint_may_have_a_relative_path_and_keeps_a_seed_that_was_drawn(built, scripted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    algorithm = built(scripted.debugging(seed=None))
    seed, runner = algorithm.config.seed, algorithm.env_runner
    assert isinstance(seed, int)
    assert (runner.config.seed, algorithm.evaluation_config.seed, algorithm.learner_group.config.seed) == (seed,) * 3
    assert (algorithm.train()["config"]["seed"], scripted.seed) == (seed, None)
    assert algorithm.save_to_path("mine") == str(tmp_path / "mine")
    algorithm.restore_from_path("mine")
    restored = ARPO.from_checkpoint("mine")
    restored.stop()
    assert (type(restored), restored.config.seed) == (ARPO, seed)


def test_a_trials_seed_follows_from_its_name_and_outside_of_tune_chance_decides():
    assert trial_seed("a1b2c_00000") == 579297045  # Half of the first four bytes of its SHA-256.
    seeds = {trial_seed(f"a1b2c_{i:05}") for i in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len({trial_seed(None) for _ in range(8)}) == 8


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda algorithm: algorithm.get_policy(), "ARPO has no Policy, since an engine samples: use get_module(), "),
        (lambda algorithm: algorithm.add_module("x", None), "add_module('x'): ARPO has one policy, which plays every"),
        (lambda algorithm: algorithm.remove_module("x"), "remove_module('x'): ARPO has one policy, which plays every"),
        (lambda algorithm: algorithm.set_weights({"x": {}}), "set_weights: the only module is 'default_policy', not "),
    ],
)
def test_what_belongs_to_policies_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(ValueError) as raised:
        call(object.__new__(ARPO))
    assert str(raised.value).startswith(sentence)


def test_an_algorithm_that_was_stopped_says_so(scripted):
    algorithm = scripted.build_algo()
    algorithm.stop()
    start = time.monotonic()
    algorithm.stop()
    for call in (algorithm.train, algorithm.evaluate):
        with pytest.raises(
            RuntimeError, match=r"^This algorithm was stopped, and its engines with it: build it again\."
        ):
            call()
    assert time.monotonic() - start < 30


#: Metrics of forks and tools, which a run without forks does not have.
OF_FORKS = {"fork_depth_mean", "fork_depth_p10", "fork_depth_p90", "fork_rate", "tools"}


class Logging(RLlibCallback):
    """Logs under a name of its own, and keeps where environments were made."""

    made: list = []  # noqa: RUF012

    def on_environment_created(self, *, env, env_context, **kwargs):
        Logging.made.append((env_context.worker_index, env_context.vector_index, env_context.get("split")))

    def on_episode_end(self, *, episode, env, env_index, env_runner, metrics_logger, **kwargs):
        assert f"q{env.question}" == episode.id_
        assert any(env_index < len(pool) and pool[env_index] is env for pool in env_runner._envs.values())
        metrics_logger.log_value("my_turns", len(episode.agent_episodes), reduce="mean")


def test_what_callbacks_log_is_reported_beside_the_metrics_of_arpo(built, scripted):
    Logging.made.clear()
    algorithm = built(scripted.callbacks(Logging).evaluation(evaluation_config={"env_config": {"split": "test"}}))
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
    assert Logging.made == [(0, 0, None), (0, 1, None), (0, 0, "test"), (0, 1, "test")]


@pytest.mark.parametrize("callback", ["on_algorithm_init", "on_train_result", "on_evaluate_start", "on_evaluate_end"])
def test_what_a_callback_on_the_driver_logs_is_reported(built, scripted, callback):
    def log(*, metrics_logger, **_):
        metrics_logger.log_value(("env_runners", "mine"), 7.0, reduce="sum")

    algorithm = built(scripted.evaluation(evaluation_interval=1).callbacks(**{callback: log}))
    # `on_train_result` and `on_evaluate_end` come when the iteration's result is made.
    assert 7.0 in [algorithm.train()["env_runners"].get("mine") for _ in range(2)]


@pytest.mark.parametrize(("callback", "num_env_runners"), [("on_episode_end", 0), ("on_sample_end", 1)])
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


@pytest.mark.parametrize(("callback", "num_env_runners"), [("on_episode_end", 1), ("on_sample_end", 0)])
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
