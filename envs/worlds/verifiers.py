"""verifiers 0.4: the tasks of its tasksets as rows, and worlds with their tools and rewards, in another Python.

Its pins (openai < 3, mcp == 2.0.0) conflict with this package's. `far_verifiers.py` runs there. The model gets the
tools of a task, and the weighted sum of its rewards. Tools of a task fork by copy; those of the whole taskset are
shared.

    python3.12 -m venv /opt/vf
    /opt/vf/bin/pip install verifiers==0.4.0 my-taskset

    write_rows("tasks.jsonl", "my-taskset", python="/opt/vf/bin/python", number=1000)  # once
    world = {"verifiers": {"taskset": "my-taskset", "python": "/opt/vf/bin/python"}}
    env_config = {"task": "rows", "path": "tasks.jsonl", "protocol": "function_calling", "world": world}
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.envs.worlds.interpreter import environment_of_others, interpreter_world
from rllib_arpo.envs.worlds.world import World

_FILE = Path(__file__).with_name("far_verifiers.py")


def verifiers_world(taskset: str, *, python: str, config: Mapping[str, Any] | None = None) -> Callable[[], World]:
    """The maker of worlds for the tasks of a taskset; `write_rows` writes their questions.

    Args:
        taskset: its id, which is a module of the other Python.
        python: the path of a Python with verifiers.
        config: the taskset's configuration.

    Raises:
        ValueError: there is no such Python or taskset, or its tasks need a container.
    """
    return interpreter_world(f"{_FILE}:tasks", python, {"taskset": taskset, "config": config or {}})


def write_rows(path: str, taskset: str, *, python: str, number: int, config: Mapping[str, Any] | None = None) -> None:
    """Writes the data of the first tasks for the task "rows", one JSON object a line; blocks.

    Args:
        path: the file, which is replaced.
        number: the largest number of tasks.
        taskset, python, config: see `verifiers_world`.

    Raises:
        subprocess.CalledProcessError: the taskset cannot be read; the terminal shows why.
    """
    command = [python, "-P", str(_FILE), taskset, str(number), json.dumps(config or {})]
    environment = {**environment_of_others(), "PYTHONPATH": os.getcwd()}
    rows = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    Path(path).write_bytes(rows)
