"""The names under which the environments are known to RLlib."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

#: Environment name -> task; None: `env_config["task"]` names it.
ENVIRONMENTS: dict[str, str | None] = {
    "ToolMath-v0": "arithmetic",
    "Catalogue-v0": "catalogue",
    "ParquetQuestions-v0": "parquet",
    "ToolEnv-v0": None,
}


def register_envs() -> None:
    """Makes the names known to Ray Tune. Imports no environment."""
    from ray.tune.registry import register_env

    for name in ENVIRONMENTS:
        register_env(name, functools.partial(make_env, name))


def make_env(name: str, env_config: Mapping[str, Any]):
    """The environment called `name`, one of `ENVIRONMENTS`. `env_config` may be RLlib's `EnvContext`."""
    from rllib_arpo.envs.tool_env import ToolEnv

    return ToolEnv(with_task(name, env_config))


def validate_env_config(name: str, env_config: Mapping[str, Any], check_prompt: bool = True) -> None:
    """`ToolEnv.validate_config` for the environment called `name`; does nothing for names that are not ours."""
    from rllib_arpo.envs.tool_env import ToolEnv

    if name in ENVIRONMENTS:
        ToolEnv.validate_config(with_task(name, env_config), check_prompt)


def with_task(name: str, env_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`env_config` with the task that the environment's name implies; an `EnvContext` stays one."""
    task = ENVIRONMENTS[name]
    if task is None:
        return env_config
    if env_config.get("task", task) != task:
        raise ValueError(f"{name} asks the questions of the task {task!r}: env_config['task'] must not be another.")
    complete = env_config.copy_with_overrides() if hasattr(env_config, "copy_with_overrides") else dict(env_config)
    complete["task"] = task
    return complete
