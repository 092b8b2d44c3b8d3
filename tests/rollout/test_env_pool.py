"""The environments of an env runner."""

import rllib_arpo
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.rollout.messages import Purpose
from tests.helpers.configs import small_config


def test_they_share_what_never_changes(model_folder):
    rllib_arpo.register()
    runner = ARPOEnvRunner(small_config(model_folder).env_runners(num_envs_per_env_runner=3))
    first, *others = runner._env_pool(Purpose.TRAINING)
    assert [other.task is first.task for other in others] == [True, True]
    assert runner._env_pool(Purpose.EVALUATION)[0].task is not first.task
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
