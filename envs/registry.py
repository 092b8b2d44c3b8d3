"""The names under which RLlib knows the environments, and under which a configuration knows the tasks."""

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
    "Catalogue-v0": "catalogue",
    "Trails-v0": "trails",
    "ParquetQuestions-v0": "parquet",
    "ToolEnv-v0": None,
}
#: Name -> task class, for tasks that this process gave to `register_task`.
_OWN_TASKS: dict[str, type[Task]] = {}


def register_envs() -> None:
    """Makes the names of the environments, and of tasks of your own, known to Ray Tune. Imports no environment."""
    from ray.tune.registry import register_env

    for name in ENVIRONMENTS:
        register_env(name, functools.partial(make_tool_env, name))
    for name, task_class in _OWN_TASKS.items():
        register_env(_tune_name(name), functools.partial(_give, task_class))


def register_task(name: str, task_class: type[Task]) -> None:
    """Makes a task of your own known as `env_config["task"] = name`, here and in the processes of this Ray cluster.

    Other processes (another command, a script that restores a checkpoint) must also call this function; "module:Class"
    instead of a name needs no call anywhere.

    Args:
        task_class: a frozen dataclass that subclasses `rllib_arpo.envs.tasks.Task`. Ray's worker processes must be able
            to import its module, unless the class is defined in the main script.

    Raises:
        ValueError: the class is not such a dataclass, or the name is a built-in task's, empty, or has a colon.
    """
    from rllib_arpo.envs.tasks import TASKS

    if not name or ":" in name or name in TASKS:
        raise ValueError(f"register_task: the name {name!r} is a built-in task's, empty, or has a colon.")
    _OWN_TASKS[name] = _checked_task(task_class, f"register_task: {task_class!r}")
    register_envs()


def find_task(name: Any) -> type[Task]:
    """The task of that name, or a class: itself, or as "module:Class".

    Raises:
        ValueError: there is no such task."""
    from ray.tune.registry import ENV_CREATOR, _global_registry

    from rllib_arpo.envs.support.validation import check_known, import_named
    from rllib_arpo.envs.tasks import TASKS

    known = TASKS | _OWN_TASKS
    if not isinstance(name, str) or ":" in name:
        found = import_named(name, "task") if isinstance(name, str) else name
        return _checked_task(found, f"env_config['task']: {name!r:.80}")
    # Tasks that another process of the cluster registered, usually the driver.
    if name not in known and _global_registry.contains(ENV_CREATOR, _tune_name(name)):
        return _global_registry.get(ENV_CREATOR, _tune_name(name))()
    check_known([name], known, "task")
    return known[name]


def task_keys(name: Any) -> set[str]:
    """The keys of `env_config` that the task of that name has; raises as `find_task` does."""
    task_class: Any = find_task(name)
    return {field.name for field in dataclasses.fields(task_class)}


def _checked_task(task_class: Any, what: str) -> type[Task]:
    from rllib_arpo.envs.tasks import Task

    is_task = isinstance(task_class, type) and issubclass(task_class, Task) and dataclasses.is_dataclass(task_class)
    if not is_task:
        raise ValueError(f"{what} is not a dataclass that subclasses rllib_arpo.envs.tasks.Task.")
    return task_class


def _tune_name(task: str) -> str:
    """Tune carries environments to all processes of a cluster; a task travels as an environment that is never made."""
    return f"rllib_arpo task {task}"


def _give(task_class: type[Task]) -> type[Task]:
    return task_class


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
        raise ValueError(f"{name} asks the questions of the task {task!r}: env_config['task'] must not be another.")
    complete = env_config.copy_with_overrides() if hasattr(env_config, "copy_with_overrides") else dict(env_config)
    complete["task"] = task
    return complete
