"""Things that users of RLlib do with any algorithm: set weights, take the module, reuse trials, stop."""

import itertools
import threading
import time

import numpy as np
import pytest
import torch
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.result import STDERR_FILE, STDOUT_FILE, TRIAL_INFO

from rllib_arpo import ARPO
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.learner.learner_group import ARPOLearnerGroup
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from tests.helpers.scripted_env import ScriptedEnv
from tests.helpers.weights import learner_weights

NAME = "model.norm.weight"


def weights_of(algorithm) -> dict:
    state = algorithm.learner_group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}")
    return state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]


def doubled(algorithm) -> dict:
    weights = weights_of(algorithm)[DEFAULT_MODULE_ID]
    return {DEFAULT_MODULE_ID: {name: 2 * value if name.endswith(NAME) else value for name, value in weights.items()}}


def set_in_the_group(algorithm) -> None:
    algorithm.learner_group.set_weights(doubled(algorithm))


def set_in_the_algorithm(algorithm) -> None:
    algorithm.set_weights(doubled(algorithm))


def set_in_the_module(algorithm) -> None:
    algorithm.get_module().set_state(doubled(algorithm)[DEFAULT_MODULE_ID])


def change_in_each_learner(algorithm) -> None:
    def double(learner) -> None:
        with torch.no_grad():
            learner.module[DEFAULT_MODULE_ID].causal_lm.get_parameter(NAME).mul_(2.0)

    algorithm.learner_group.foreach_learner(double)


WAYS = (set_in_the_group, set_in_the_algorithm, set_in_the_module, change_in_each_learner)


@pytest.mark.parametrize(
    ("change", "evaluating", "then"),
    [
        *itertools.product(WAYS, [0], [["evaluate"], ["train"]]),
        # The engines of evaluation get them first.
        (change_in_each_learner, 1, ["evaluate", "train"]),
    ],
)
def test_weights_that_the_user_changes_reach_the_engine(built, scripted, change, evaluating, then):
    algorithm = built(scripted.evaluation(evaluation_num_env_runners=evaluating))
    engine = algorithm.env_runner.engine
    before = engine.weights[NAME].copy()
    change(algorithm)
    seen = []
    submit = engine.submit
    engine.submit = lambda request: (seen.append(engine.weights[NAME].copy()), submit(request))
    for method in then:
        getattr(algorithm, method)()
    np.testing.assert_array_equal(seen[0], 2 * before)


def test_the_learners_state_does_not_pass_through_the_driver(scripted, tmp_path, monkeypatch):
    """Neither when a checkpoint is written nor when it is read."""
    passed = []
    get_state, set_state = ARPOLearnerGroup.get_state, ARPOLearnerGroup.set_state

    def watch(name: str, state: dict) -> dict:
        if state.get(COMPONENT_LEARNER, {}).get(COMPONENT_RL_MODULE):
            passed.append(name)
        return state

    monkeypatch.setattr(ARPOLearnerGroup, "get_state", lambda *args, **kw: watch("get_state", get_state(*args, **kw)))
    monkeypatch.setattr(ARPOLearnerGroup, "set_state", lambda self, state: set_state(self, watch("set_state", state)))
    algorithm = scripted.learners(num_learners=1).build_algo()
    algorithm.train()
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    assert passed == []
    before = learner_weights(algorithm)
    assert passed == ["get_state"]  # The test itself.
    algorithm.stop()
    passed.clear()
    restored = ARPO.from_checkpoint(path)
    assert passed == []
    np.testing.assert_array_equal(learner_weights(restored)[NAME], before[NAME])
    np.testing.assert_array_equal(restored.env_runner.engine.weights[NAME], before[NAME])
    restored.stop()


def test_the_path_of_a_checkpoint_may_be_relative(built, scripted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    algorithm = built(scripted)
    assert algorithm.save_to_path("mine") == str(tmp_path / "mine")
    algorithm.restore_from_path("mine")
    restored = ARPO.from_checkpoint("mine")
    restored.stop()
    assert type(restored) is ARPO


@pytest.mark.parametrize("num_learners", [0, 1])
def test_get_module_gives_what_is_trained(built, scripted, num_learners):
    algorithm = built(scripted.learners(num_learners=num_learners))
    algorithm.train()
    views = algorithm.get_module().weight_views()
    for name, value in learner_weights(algorithm).items():
        np.testing.assert_array_equal(views[name], value)
    assert algorithm.get_module("nobody") is None


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda algorithm: algorithm.get_policy(), "ARPO has no Policy, since an engine samples: use get_module(), "),
        (lambda algorithm: algorithm.add_module("x", None), "add_module('x'): one model plays every trajectory and is"),
        (lambda algorithm: algorithm.remove_module("x"), "remove_module('x'): one model plays every trajectory and is"),
        (lambda algorithm: algorithm.set_weights({"x": {}}), "set_weights: the only module is 'default_policy', not "),
    ],
)
def test_what_belongs_to_policies_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(ValueError) as raised:
        call(object.__new__(ARPO))
    assert str(raised.value).startswith(sentence)


def test_metrics_that_users_of_rllib_look_for(built, scripted):
    algorithm = built(scripted.training(kl_coeff=0.1))
    algorithm.train()
    result = algorithm.train()
    rollout, learner = result["env_runners"], result["learners"]["default_policy"]
    episodes = [s.episode for s in algorithm.last_sampled]
    assert rollout["episode_len_max"] == max(map(len, episodes))
    assert rollout["episode_len_mean"] == sum(map(len, episodes)) / 2
    assert (rollout["episode_return_min"], rollout["episode_return_max"]) == (0.0, 1.0)
    turns = sum(len(one) for episode in episodes for one in episode.agent_episodes.values())
    assert rollout["num_module_steps_sampled"]["default_policy"] == rollout["num_env_steps_sampled"] == turns
    assert rollout["num_module_steps_sampled_lifetime"]["default_policy"] > turns
    assert learner["kl"] > 0
    assert learner["total_loss"] != learner["policy_loss"]


class BadQuestions(ScriptedEnv):
    """Question 1 cannot be started."""

    def reset(self, *, seed=None, options=None):
        if (options or {}).get("question") == 1:
            raise KeyError("no such page")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_a_question_that_cannot_be_asked_is_left_out_and_counted(built, scripted, num_env_runners):
    algorithm = built(
        scripted.environment(BadQuestions, env_config={"rewards": {"0": 1.0}}).env_runners(
            num_env_runners=num_env_runners
        )
    )
    result = algorithm.train()
    assert result["env_runners"]["questions_given_up"] == 1
    assert result["learners"]["default_policy"]["num_questions_trained"] == 1
    assert algorithm.train()["env_runners"]["questions_given_up"] == 0


def test_a_batch_without_a_question_ends_the_run_with_the_cause(built, scripted):
    algorithm = built(scripted.environment(BadQuestions).training(questions_per_batch=1, questions_per_minibatch=1))
    algorithm.train()
    with pytest.raises(RuntimeError, match=r"No question of the batch could be sampled\. Last cause: KeyError"):
        algorithm.train()


def test_another_configuration_in_the_same_actor(built, scripted):
    """As Tune passes it: a dict, with keys of Tune's own."""
    algorithm = built(scripted)
    algorithm.train()
    # A rate that no fp32 weight can show.
    other = scripted.copy(copy_frozen=False).training(lr=1e-30, questions_per_batch=3, questions_per_minibatch=3)
    assert algorithm.reset({**other.to_dict(), TRIAL_INFO: None, STDOUT_FILE: None, STDERR_FILE: None})
    start = learner_weights(algorithm)
    result = algorithm.train()
    assert (result["env_runners"]["num_episodes_lifetime"], result["training_iteration"]) == (3, 1)
    assert (result["config"]["lr"], result["config"]["questions_per_batch"]) == (1e-30, 3)
    np.testing.assert_array_equal(learner_weights(algorithm)[NAME], start[NAME])


def test_another_configuration_may_evaluate_without_env_runners_of_its_own(built, scripted):
    own = scripted.copy(copy_frozen=False).evaluation(evaluation_num_env_runners=1)
    algorithm = built(own)
    assert algorithm.evaluate()["env_runners"]["num_episodes"] == 3
    algorithm.reset(scripted.to_dict())
    assert algorithm.eval_env_runner_group is None
    assert algorithm.evaluate()["env_runners"]["num_episodes"] == 3


def refuse(*args, **kwargs):
    raise OSError("not today")


class NotToday(ScriptedEnv):
    """Cannot be made."""

    def __init__(self, env_config=None):
        refuse()


@pytest.mark.parametrize("spoil", [
    pytest.param(lambda config, patch: patch.setattr(ARPOEnvRunner, "load_weights", refuse), id="first push"),
    pytest.param(lambda config, patch: patch.setattr(ARPOTorchLearner, "build", refuse), id="learner"),
    pytest.param(lambda config, _: config.callbacks(on_algorithm_init=refuse), id="on_algorithm_init"),
    pytest.param(lambda config, _: config.callbacks(on_environment_created=refuse), id="on_environment_created"),
    pytest.param(lambda config, _: config.environment(NotToday), id="environment"),
])  # fmt: skip
def test_a_failed_start_leaves_no_engine_behind(scripted, monkeypatch, spoil):
    spoil(scripted, monkeypatch)
    with pytest.raises(Exception, match="not today"):
        scripted.build_algo()
    for thread in [thread for thread in threading.enumerate() if thread.name in ("engine", "rollout")]:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        (lambda config: config.environment(NotToday), "env=<class '.*NotToday'> cannot be made: OSError: not today"),
        (
            lambda config: config.callbacks(on_environment_created=refuse),
            "A callback, on_environment_created, raised OSError: not today",
        ),
    ],
)
@pytest.mark.parametrize("group", ["env_runners", "evaluation"])
def test_a_remote_env_runner_that_cannot_be_made_names_the_cause(scripted, config, cause, group):
    """RLlib logs the error and goes on without the actor, as far as an IndexError."""
    if group == "env_runners":
        config(scripted).env_runners(num_env_runners=1)
    else:
        spoiled = config(scripted.copy(copy_frozen=False))
        changed = {key: getattr(spoiled, key) for key in ("env", "callbacks_on_environment_created")}
        changed |= {"env_config": {}}
        scripted.evaluation(evaluation_num_env_runners=1, evaluation_config=changed)
    with pytest.raises(RuntimeError, match=rf"^Env runner 1 could not be made: ContractError: {cause}\.$"):
        scripted.build_algo()


class NotTodayAfterAWhile(ScriptedEnv):
    def __init__(self, env_config=None):
        time.sleep(5)
        refuse()


def test_an_env_runner_that_ray_is_still_making_is_waited_for(scripted, monkeypatch):
    """On a busy machine RLlib's own calls may fail while Ray makes the env runner once more."""

    def lost(group):
        group._worker_manager.set_actor_state(1, healthy=False)
        raise IndexError("list index out of range")

    monkeypatch.setattr(EnvRunnerGroup, "get_spaces", lost)
    monkeypatch.setattr("rllib_arpo.faults.END_TIMEOUT_S", 0.5)
    scripted.env_runners(num_env_runners=1, validate_env_runners_after_construction=False)
    with pytest.raises(RuntimeError, match=r"^Env runner 1 could not be made: ContractError: env=.* not today\.$"):
        scripted.environment(NotTodayAfterAWhile).build_algo()


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
