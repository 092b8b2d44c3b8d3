"""The environments of an env runner."""

from __future__ import annotations

import rllib_arpo
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from tests.helpers.configs import small_config


def test_they_share_what_never_changes(model_folder):
    rllib_arpo.register()
    runner = ARPOEnvRunner(small_config(model_folder).env_runners(num_envs_per_env_runner=3))
    first, *others = runner._env_pool(evaluation=False)
    assert [other.task is first.task for other in others] == [True, True]
    assert runner._env_pool(evaluation=True)[0].task is not first.task
    runner.stop()
