"""The driver's facts of a trial, as `run.json` in the trial's folder: its description, its tags, its status."""

import dataclasses
import getpass
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.tune.result import EXPR_ERROR_FILE

from rllib_arpo.core.branching import reads_p, rule_in_words
from rllib_arpo.files import write_json
from rllib_arpo.redaction import command_without_secrets, without_secrets
from rllib_arpo.tracking.machine import git_says, versions

#: The file in the trial's folder.
RUN_FILE = "run.json"
#: MLflow's statuses of a run.
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
#: The tag that MLflow shows as the description of a run.
NOTE_TAG = "mlflow.note.content"
#: The settings of a trial that a description reads; all other settings are the params of the MLflow run.
KEYS = (
    "branch_base_probability", "branch_entropy_weight", "branch_share", "branch_threshold", "branch_width",
    "branching", "budget_allocation", "entropy_baseline", "env", "model_name_or_path", "random_fork_probability",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Attributes:
    id: names the folder; the MLflow run has it as a tag.
    name: of the run.
    tags: with the description; given to a new run.
    status: of the trial.
    experiment: MLflow's; None: the store's default one.
    all_metrics, report, traces: what is logged, as `ARPOMLflowCallback` has it.
    """

    id: str
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    status: str = RUNNING
    experiment: str | None = None
    all_metrics: bool = False
    report: bool = True
    traces: int = 8

    @property
    def has_ended(self) -> bool:
        """An interrupted trial has not; it may go on."""
        return self.status in (FINISHED, FAILED)


def write_facts(folder: Path, facts: RunFacts) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RUN_FILE, dataclasses.asdict(facts))


def read_facts(folder: Path) -> RunFacts:
    """The facts of a trial's folder. Where a trial ran without the callback, they are made of the folder's name."""
    path = folder / RUN_FILE
    if path.is_file():
        return RunFacts(**json.loads(path.read_text(encoding="utf-8")))
    name = folder.resolve()
    status = FAILED if (folder / EXPR_ERROR_FILE).is_file() else FINISHED
    return RunFacts(f"{name.parent.name}/{name.name}", name.name, {"trial_name": name.name}, status)


def run_tags() -> dict[str, str]:
    """The data needed to repeat a run: versions, script, user, machine, and the git commit of the current checkout."""
    installed = {name.replace("-", "_").removesuffix("_cpu"): version for name, version in versions().items()}
    tags = {
        **{f"{name}_version": version for name, version in installed.items()},
        "hostname": platform.node(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": sys.argv[0],
    }
    user = _user()
    if user is not None:
        tags["mlflow.user"] = user
    commit = git_says(Path.cwd(), "rev-parse", "HEAD")
    if commit is not None:
        tags["mlflow.source.git.commit"] = commit
        tags["git_dirty"] = str(bool(git_says(Path.cwd(), "status", "--porcelain", "--untracked-files=no"))).lower()
    return tags


def description(
    algorithm: str, config: Mapping[str, Any], command: str, commit: str | None = None, folder: str | None = None
) -> str | None:
    """The description of a training run.

    Args:
        algorithm: its name ("ARPO", "GRPO").
        config: of the trial.
        command: the command line.
        commit: of this package; None: it is not in a checkout.
        folder: of the trial's results; None: not known.

    Returns:
        None if this is not a run of ARPO, or its configuration has only what differs from the defaults.
    """
    if any(key not in config for key in KEYS) or config["model_name_or_path"] is None:
        return None
    lines = {
        "model": f"`{config['model_name_or_path']}`" + (", a LoRA" if config.get("lora") else ""),
        "task": _task(config),
        "forks": _forks(config),
        "command": f"`{command}`",
        "commit": commit and f"`{commit}`",
        "results": folder and f"`{folder}`",
        "look": folder and f"`rllib-arpo show {shlex.quote(folder)}` draws its trees, with `--plots` its curves",
    }
    title = f"**{algorithm}** trains `{Path(config['model_name_or_path']).name}` on `{_name(config['env'])}`."
    return without_secrets("\n".join([title, "", *(f"- {name}: {text}" for name, text in lines.items() if text)]))


def command_line() -> str:
    """The command of this process, with the interpreter's name instead of its path, and without secrets."""
    program, *arguments = sys.orig_argv or sys.argv
    return shlex.join([Path(program).name, *command_without_secrets(arguments)])


def _task(config: Mapping[str, Any]) -> str:
    """The environment with its settings; of those that hold several values, only their names."""
    settings = [
        f"{key}: {', '.join(map(str, value)) or 'none'}" if isinstance(value, Mapping) else f"{key} {value}"
        for key, value in without_secrets(config.get("env_config") or {}).items()
        if isinstance(value, Mapping | str | int | float)
    ]
    return ", ".join([f"`{_name(config['env'])}`", *settings])


def _forks(config: Mapping[str, Any]) -> str:
    rule = config["branching"]
    if rule == "never":
        return "none"
    parts = [rule_in_words(config)]
    if reads_p(rule):
        parts.append(f"P = {config['branch_base_probability']} + {config['branch_entropy_weight']} dH")
        parts.append(f"dH from the {config['entropy_baseline']} baseline")
    return ", ".join([*parts, f"in the order `{config['budget_allocation']}`"])


def _name(env: Any) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", str(env))


def _user() -> str | None:
    """The login name; None in a container whose user id has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
