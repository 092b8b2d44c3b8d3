"""Keeps what the driver knows of a trial in its folder, as `run.json`: tags and status."""

import dataclasses
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ray.tune.result import EXPR_ERROR_FILE

from rllib_arpo.files import write_json
from rllib_arpo.redaction import command_without_secrets
from rllib_arpo.tracking.machine import commit, versions

#: The file in the trial's folder.
RUN_FILE = "run.json"
#: MLflow's statuses of a run.
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the driver knows of a run.

    Attributes:
        id: identifies the folder; the MLflow run has it as a tag.
        name: the run's name.
        tags: tags for a new run.
        status: the trial's status.
        experiment: the name of MLflow's experiment; None: the store's default.
        traces: as in `ARPOMLflowCallback`.
    """

    id: str
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    status: str = RUNNING
    experiment: str | None = None
    traces: int = 8


def write_facts(folder: Path, facts: RunFacts) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RUN_FILE, dataclasses.asdict(facts))


def read_facts(folder: Path) -> RunFacts:
    """The facts in a trial's folder. If the trial ran without the callback, they follow from the folder's name."""
    path = folder / RUN_FILE
    if path.is_file():
        return RunFacts(**json.loads(path.read_text(encoding="utf-8")))
    name = folder.resolve()
    status = FAILED if (folder / EXPR_ERROR_FILE).is_file() else FINISHED
    return RunFacts(f"{name.parent.name}/{name.name}", name.name, {"trial_name": name.name}, status)


def run_tags() -> dict[str, str]:
    """The tags for repeating a run: command, this package's commit, versions, machine, and MLflow's own tags."""
    from mlflow.tracking.context.registry import resolve_tags

    installed = {name.replace("-", "_").removesuffix("_cpu"): version for name, version in versions().items()}
    return {
        **{f"{name}_version": version for name, version in installed.items()},
        "command": command_line(),
        "commit": commit() or "unknown",
        "hostname": platform.node(),
        **resolve_tags(),
    }


def command_line() -> str:
    """The command of this process without secrets; the interpreter appears by its name, not its path."""
    program, *arguments = sys.orig_argv or sys.argv
    return shlex.join([Path(program).name, *command_without_secrets(arguments)])
