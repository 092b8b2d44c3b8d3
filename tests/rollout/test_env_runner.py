"""An env runner: its environments, and its callbacks, which may log under any name but those of ARPO's metrics."""

import re
from types import SimpleNamespace

import pytest
from ray.rllib.utils.metrics.metrics_logger import DEFAULT_STATS_CLS_LOOKUP, MetricsLogger
from ray.rllib.utils.metrics.stats import MeanStats

import rllib_arpo
from rllib_arpo import ARPOConfig
from rllib_arpo.envs.errors import ContractError, DataError
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.rollout.callbacks import RunnerCallbacks
from rllib_arpo.rollout.dispatch import QuestionDispatcher
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import Purpose, QuestionRef, SampledQuestion, SamplingConditions
from rllib_arpo.rollout.metric_table import OWN_NAMES
from tests.helpers.configs import small_config
from tests.helpers.scripted_env import ScriptedEnv
from tests.helpers.trees import make_tree


def test_they_share_what_never_changes_and_one_that_does_not_close_leaves_the_engine_to_be_closed(
    model_folder, monkeypatch, caplog
):
    def fail(_env):
        raise OSError("its socket is gone")

    rllib_arpo.register()
    runner = ARPOEnvRunner(small_config(model_folder).env_runners(num_envs_per_env_runner=3))
    first, *others = runner._env_pool(Purpose.TRAINING)
    assert [other.task is first.task for other in others] == [True, True]
    assert runner._env_pool(Purpose.EVALUATION)[0].task is not first.task
    monkeypatch.setattr(type(first), "close", fail)
    closed, close = [], runner.engine.close
    monkeypatch.setattr(runner.engine, "close", lambda: closed.append(close()))
    runner.stop()
    assert closed == [None]
    assert caplog.text.count("ToolEnv of env runner None did not close (OSError('its socket is gone')).") == 6


def test_a_pool_that_never_becomes_whole_is_closed(model_folder, monkeypatch):
    def refuse(*, env_context, **_kwargs):
        assert env_context.vector_index < 1

    rllib_arpo.register()
    closed = []
    monkeypatch.setattr(ToolEnv, "close", lambda env: closed.append(env))
    config = small_config(model_folder).env_runners(num_envs_per_env_runner=3).callbacks(on_environment_created=refuse)
    with pytest.raises(ContractError, match="on_environment_created"):
        ARPOEnvRunner(config)
    assert len(closed) == 3


def test_each_environment_of_a_pool_knows_its_number(model_folder):
    class Numbered(ScriptedEnv):
        numbers = ()

        def __init__(self, context):
            super().__init__(context)
            Numbered.numbers += (context.vector_index,)

    config = small_config(model_folder).environment(Numbered).env_runners(num_envs_per_env_runner=3)
    ARPOEnvRunner(config).stop()
    assert Numbered.numbers == (0, 1, 2)


@pytest.mark.parametrize("name", ["stop", "tool_names"])
def test_a_text_is_not_taken_for_a_tuple_of_texts(model_folder, name):
    """Otherwise generation would stop at each of its letters."""
    env = type("Mine", (ScriptedEnv,), {name: "</tool>"})
    with pytest.raises(ValueError, match=f"^env=.*Mine'>: {name}='</tool>' must be a tuple of texts.$"):
        ARPOEnvRunner(small_config(model_folder).environment(env))


def test_environments_of_evaluation_that_cannot_be_made_do_not_cost_the_env_runner(model_folder):
    """RLlib ends an env runner on any exception, and its engine with it."""
    rllib_arpo.register()
    config = small_config(model_folder)
    runner = ARPOEnvRunner(config.evaluation(evaluation_config={"env_config": {"split": "tests"}}))
    failure = runner.num_questions(Purpose.EVALUATION)
    assert failure.message.startswith("env='ToolMath-v0' cannot be made: ")
    group = SimpleNamespace(num_remote_env_runners=lambda: 1, foreach_env_runner=lambda *_, **__: [64, failure])
    with pytest.raises(DataError, match=f"^{re.escape(failure.message)}$"):
        QuestionDispatcher(group, ARPOConfig(), None, None).num_questions(Purpose.EVALUATION, 8)
    runner.stop()


def test_an_environment_that_raises_when_it_is_asked_for_its_questions_is_named_with_its_error(model_folder):
    class Mine(ScriptedEnv):
        num_questions = property(lambda self: {}["rows"], lambda self, number: None)

    runner = ARPOEnvRunner(small_config(model_folder).environment(Mine))
    failure = runner.num_questions(Purpose.TRAINING)
    assert (failure.message, failure.retry) == ("KeyError: 'rows'", True)
    runner.stop()


def test_the_progress_begins_anew_when_the_engine_has_new_weights(model_folder, monkeypatch):
    rllib_arpo.register()
    runner, begun = ARPOEnvRunner(small_config(model_folder)), []
    monkeypatch.setattr(runner._progress, "begin", lambda *rollout: begun.append(rollout))
    for version, refs in ((3, [QuestionRef(0), QuestionRef(1)]), (4, [QuestionRef(2)])):
        runner.engine.weight_version = version
        runner._submit(refs, SamplingConditions(version))
    assert begun == [(2, "rollout", 3), (1, "rollout", 4)]
    runner.stop()


def test_the_metrics_know_which_tools_it_has(model_folder):
    """... though a model of random tokens calls none."""
    rllib_arpo.register()
    config = small_config(model_folder).environment("ToolMath-v0", env_config={"tools": ["python"]})
    runner = ARPOEnvRunner(config)
    runner.sample(num_episodes=1)
    calls = {name: value for name, value in runner._sample_metrics.items() if name.startswith("tools/")}
    assert calls == {"tools/python/calls": 0, "tools/python/errors": 0, "tools/python/timeouts": 0}
    runner.stop()


class Own(MeanStats):
    """A reduction of the user's."""


STATS = DEFAULT_STATS_CLS_LOOKUP | {"own": Own}


@pytest.mark.parametrize("purpose", Purpose)
def test_callbacks_log_with_reductions_of_the_users(purpose):
    def log(metrics_logger, **_):
        metrics_logger.log_value("mine", 2.0, reduce="own")

    callbacks = on_sample_end(log, purpose)
    assert isinstance(callbacks.take_metrics([purpose])[purpose]["mine"], Own)


def on_sample_end(callback, purpose: Purpose) -> RunnerCallbacks:
    config = SimpleNamespace(callbacks_on_sample_end=callback, stats_cls_lookup=STATS)
    callbacks = RunnerCallbacks(
        SimpleNamespace(_callbacks=[], config=config, metrics=MetricsLogger(stats_cls_lookup=STATS)), Purpose.TRAINING
    )
    callbacks.sampled([SampledQuestion(QuestionRef(0, purpose), TreeEpisode(make_tree([1], [])))])
    return callbacks


@pytest.mark.parametrize("key", [*((name,) for name in sorted(OWN_NAMES)), ("entropy", "mine"), "stop/mine"])
@pytest.mark.parametrize("purpose", Purpose)
def test_a_name_of_arpos_is_refused(purpose, key):
    def log(metrics_logger, **_):
        metrics_logger.log_value(key, 100.0)

    name = key.split("/")[0] if isinstance(key, str) else key[0]
    sentence = f"^A callback, on_sample_end, logs under '{name}', a name of ARPO's own metrics: choose another name.$"
    with pytest.raises(ContractError, match=sentence):
        on_sample_end(log, purpose)


@pytest.mark.parametrize(("error", "retry"), [(ValueError("unknown weight w"), False), (RuntimeError("lost"), True)])
def test_an_engine_that_refuses_weights_is_not_restarted(error, retry):
    def refuse(_runner, method, *_args):
        if method == "check_weights":
            raise error

    runner = SimpleNamespace(worker_index=2)
    runner._attempt = ARPOEnvRunner._attempt.__get__(runner)
    runner._call_engine = refuse.__get__(runner)
    failure = ARPOEnvRunner.begin_transfer(runner, {"w": (2,)})
    assert (failure.retry, failure.message) == (
        retry,
        f"Env runner 2 cannot take weights: {type(error).__name__}: {error}",
    )
