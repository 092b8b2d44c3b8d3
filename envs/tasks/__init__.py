"""Sources of questions."""

from __future__ import annotations

from rllib_arpo.envs.tasks.arithmetic import ArithmeticTask
from rllib_arpo.envs.tasks.dataset import DatasetTask
from rllib_arpo.envs.tasks.seeds import SeedsTask
from rllib_arpo.envs.tasks.specs import SPECS
from rllib_arpo.envs.tasks.task import Task
from rllib_arpo.envs.tasks.trails import TrailsTask

__all__ = ["TASKS", "DatasetTask", "Task"]

#: Name -> task class, a dataclass whose fields are keys of `env_config`; `task` itself may be one of them.
TASKS: dict[str, type[Task]] = {
    "arithmetic": ArithmeticTask,
    "seeds": SeedsTask,
    "trails": TrailsTask,
    **dict.fromkeys(SPECS, DatasetTask),
}
