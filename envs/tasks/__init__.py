"""Sources of questions."""

from __future__ import annotations

from rllib_arpo.envs.tasks.arithmetic import ArithmeticTask
from rllib_arpo.envs.tasks.catalogue import CatalogueTask
from rllib_arpo.envs.tasks.parquet import ParquetTask
from rllib_arpo.envs.tasks.task import Task

#: Name -> task class, a dataclass whose fields are keys of `env_config`.
TASKS: dict[str, type[Task]] = {"arithmetic": ArithmeticTask, "catalogue": CatalogueTask, "parquet": ParquetTask}
