"""Env runners that die or cannot be made, environments that fail, and runs in which nothing is learned."""

import threading
import time

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER, TOOL, ScriptedEnv
from tests.integration.conftest import record_batches


class Recreated(RLlibCallback):
    """Keeps which env runners came back."""

    indices: set = set()  # noqa: RUF012

    def on_env_runners_recreated(self, *, env_runner_indices, is_evaluation, **kwargs):
        assert not is_evaluation
        Recreated.indices.update(env_runner_indices)


@pytest.mark.timeout(600)
def test_one_of_two_env_runners_dies_and_the_run_goes_on(built, scripted, tmp_path):
    """Callbacks hear which one came back."""
    Recreated.indices.clear()
    functions = set()
    scripted.callbacks(
        Recreated, on_env_runners_recreated=lambda *, env_runner_indices, **_: functions.update(env_runner_indices)
    )
    scripted.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.1, num_envs_per_env_runner=1)
    scripted.training(questions_per_batch=4, questions_per_minibatch=4)
    scripted.environment(env_config={"dies_once": str(tmp_path / "died"), "rewards": {"0": 1.0}})
    algorithm = built(scripted)
    batches = record_batches(algorithm)
    while not Recreated.indices:
        algorithm.train()
    trained = [sampled.number for batch in batches for sampled in batch]
    assert trained == [*range(4 * algorithm.iteration)]
    assert Recreated.indices == functions == {1}
    algorithm._push_weights()
    versions = algorithm.env_runner_group.foreach_env_runner("weight_version", local_env_runner=False)
    assert versions == [algorithm.iteration] * 2


def test_an_engine_that_dies_in_mid_tree_is_replaced_and_its_questions_are_asked_again(scripted, caplog, built):
    """Every engine dies at its 14th step, after some questions have ended and while others are under way."""
    scripted.language_model(engine_kwargs={**scripted.engine_kwargs, "fail_at_step": 14})
    scripted.env_runners(num_env_runners=1, num_envs_per_env_runner=2).training(questions_per_batch=4)
    algorithm = built(scripted)
    batches = record_batches(algorithm)
    algorithm.train()
    assert [sampled.number for batch in batches for sampled in batch] == [0, 1, 2, 3]
    assert "engine died at step 14" in caplog.text


class BadQuestions(ScriptedEnv):
    """Questions 1, 4 and 5 cannot be started."""

    def reset(self, *, seed=None, options=None):
        if (options or {}).get("question") in (1, 4, 5):
            raise KeyError("no such page")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_a_question_that_cannot_be_asked_is_left_out_and_counted(built, scripted, num_env_runners):
    scripted.environment(BadQuestions, env_config={"rewards": {"0": 1.0}})
    algorithm = built(scripted.env_runners(num_env_runners=num_env_runners))
    result = algorithm.train()
    assert result["env_runners"]["questions_given_up"] == 1
    assert result["learners"]["default_policy"]["num_questions_trained"] == 1
    assert algorithm.train()["env_runners"]["questions_given_up"] == 0
    with pytest.raises(RuntimeError, match=r"No question of the batch could be sampled\. Last cause: KeyError"):
        algorithm.train()


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
    before = {*threading.enumerate()}
    with pytest.raises(Exception, match="not today"):
        scripted.build_algo()
    for thread in [one for one in {*threading.enumerate()} - before if one.name in ("engine", "rollout")]:
        thread.join(10)
        assert not thread.is_alive()


def test_an_env_runner_of_evaluation_that_cannot_be_made_names_the_cause(scripted):
    """RLlib logs the error and goes on without the actor, as far as an IndexError."""
    changed = {"callbacks_on_environment_created": refuse, "env_config": {}}
    scripted.evaluation(evaluation_num_env_runners=1, evaluation_config=changed)
    cause = "A callback, on_environment_created, raised OSError: not today"
    with pytest.raises(RuntimeError, match=rf"^Env runner 1 could not be made: ContractError: {cause}\.$"):
        scripted.build_algo()


class NotTodayAfterAWhile(ScriptedEnv):
    def __init__(self, env_config=None):
        time.sleep(2)
        refuse()


def test_an_env_runner_that_ray_is_still_making_is_waited_for(scripted, monkeypatch):
    """On a busy machine RLlib's own calls may fail while Ray makes the env runner once more."""

    def lost(group):
        group._worker_manager.set_actor_state(1, healthy=False)
        raise IndexError("list index out of range")

    monkeypatch.setattr(EnvRunnerGroup, "get_spaces", lost)
    monkeypatch.setattr("rllib_arpo.faults.END_TIMEOUT_S", 0.5)
    scripted.env_runners(num_env_runners=1, validate_env_runners_after_construction=False)
    cause = r"env=<class '.*NotTodayAfterAWhile'> cannot be made: OSError: not today"
    with pytest.raises(RuntimeError, match=rf"^Env runner 1 could not be made: ContractError: {cause}\.$"):
        scripted.environment(NotTodayAfterAWhile).build_algo()


class Broken(FaultyEnv):
    """Its tools and its scorer raise."""

    async def step_agent(self, agent_id, token_ids):
        raise OSError("no server")


class Even(FaultyEnv):
    """Pays nothing to anybody."""

    async def step_agent(self, agent_id, token_ids):
        observation, _, *end = await super().step_agent(agent_id, token_ids)
        return observation, 0.0, *end


class StrangeWords(ScriptedEnv):
    """Its prompt has a token that the model does not have."""

    def prompt(self):
        return [*super().prompt(), 259]


def test_a_run_in_which_most_trajectories_end_in_an_error_ends(built, scripted):
    algorithm = built(scripted.environment(Broken))
    sentence = (
        r"^100% of the trajectories ended in an error \(max_error_share=0\.5\), for example: .*OSError: no server"
    )
    for method in (algorithm.evaluate, algorithm.train):
        with pytest.raises(RuntimeError, match=sentence):
            method()


def test_a_run_without_a_signal_warns_and_ends(built, scripted, caplog):
    algorithm = built(scripted.environment(Even).training(max_iterations_without_signal=4))
    for _ in range(3):
        algorithm.train()
    assert [m.partition(":")[0] for m in caplog.messages if "differ" in m] == [
        "No question of the first batch has rewards that differ, so the model learns nothing",
        "No question has rewards that differ, for 3 iterations in a row",
    ]
    resumed = built(algorithm.config.copy(copy_frozen=False))
    resumed.set_state(algorithm.get_state())
    for one in (algorithm, resumed):
        with pytest.raises(RuntimeError, match=r"^No question has rewards that differ, for 4 iterations in a row"):
            one.train()


@pytest.mark.parametrize(("threshold", "warnings"), [(-10.0, 1), (10.0, 0)])
def test_a_threshold_that_hardly_chooses_warns_once(built, scripted, caplog, threshold, warnings):
    scripted.language_model(engine_kwargs={"vocab_size": 256, "replies": [[7, TOOL], [8, 9, TOOL], [7, ANSWER]]})
    algorithm = built(scripted.adaptive_rollout(branch_threshold=threshold))
    for _ in range(3):
        algorithm.train()
    assert sum("of the tool responses forked (fork_rate)" in message for message in caplog.messages) == warnings


def test_a_token_that_the_model_lacks_names_the_environment(built, scripted):
    algorithm = built(scripted.environment(StrangeWords))
    sentence = r"^StrangeWords, question \d, an observation has the token id 259; the model has 0 to 258\.$"
    with pytest.raises(ValueError, match=sentence):
        algorithm.train()
