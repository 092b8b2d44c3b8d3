"""Finds environments by the names that RLlib knows, and tasks by the names that configurations use."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_arpo.envs.tasks import Task
    from rllib_arpo.envs.tool_env import ToolEnv

#: Environment name -> task; None: `env_config["task"]` names it.
ENVIRONMENTS: dict[str, str | None] = {
    "ToolMath-v0": "arithmetic",
    "Trails-v0": "trails",
    "ParquetQuestions-v0": "parquet",
    "ToolEnv-v0": None,
}


def register_envs() -> None:
    """Makes the names of the environments known to Ray Tune. Imports no environment."""
    from ray.tune.registry import register_env

    for name in ENVIRONMENTS:
        register_env(name, functools.partial(make_tool_env, name))


def find_task(name: Any) -> type[Task]:
    """The class of a task: named in `TASKS`, as "module:Class", or given itself.

    Raises:
        ValueError: there is no such task, or the class is not a dataclass that subclasses `Task`.
    """
    from rllib_arpo.envs.support.validation import check_known, import_named
    from rllib_arpo.envs.tasks import TASKS, Task

    if isinstance(name, str) and ":" not in name:
        check_known([name], TASKS, "task")
        return TASKS[name]
    found: Any = import_named(name, "task") if isinstance(name, str) else name
    if not (isinstance(found, type) and issubclass(found, Task) and dataclasses.is_dataclass(found)):
        raise ValueError(
            f"env_config['task']: {name!r:.80} is not a dataclass that subclasses rllib_arpo.envs.tasks.Task."
        )
    return found


def task_keys(name: Any) -> set[str]:
    """The keys of `env_config` that this task has; raises the errors of `find_task`."""
    task_class: Any = find_task(name)
    return {field.name for field in dataclasses.fields(task_class)}


def make_tool_env(name: str, env_config: Mapping[str, Any]) -> ToolEnv:
    """The environment called `name`, one of `ENVIRONMENTS`. `env_config` may be RLlib's `EnvContext`."""
    from rllib_arpo.envs.tool_env import ToolEnv

    return ToolEnv(with_task(name, env_config))


def validate_env_config(name: str, env_config: Mapping[str, Any]) -> None:
    """`ToolEnv.validate_config` for the environment called `name`; does nothing for names that are not ours."""
    from rllib_arpo.envs.tool_env import ToolEnv

    if name in ENVIRONMENTS:
        ToolEnv.validate_config(with_task(name, env_config))


def with_task(name: str, env_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`env_config` with the task that the environment's name implies; an `EnvContext` stays one."""
    task = ENVIRONMENTS[name]
    if task is None:
        return env_config
    if env_config.get("task", task) != task:
        raise ValueError(f"{name} asks the questions of the task {task!r}: leave env_config['task'] out.")
    complete = env_config.copy_with_overrides() if hasattr(env_config, "copy_with_overrides") else dict(env_config)
    complete["task"] = task
    return complete
