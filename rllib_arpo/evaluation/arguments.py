"""Declares and reads the command-line options that `rllib-arpo evaluate` and `rllib-arpo entropy` share."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.evaluation.metrics import SUITES, suite_tasks
from rllib_arpo.evaluation.plan import EvaluationSettings
from rllib_arpo.options.settings import add_settings
from rllib_arpo.policy.compilation import fast_dtype

#: The key of `--env-config` for every task.
EVERY_TASK = "*"
#: Default number of trajectories in flight.
TRAJECTORIES_IN_FLIGHT = 64
MODEL_HELP = "a Hugging Face folder or id, or a checkpoint of ARPO"


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `read_settings` and `read_env_configs` read, and the engine's options."""
    add = parser.add_argument
    add("--tasks", default="", help="names of tasks, separated by commas")
    add("--suite", default="", help=f"suites of the paper, separated by commas: {', '.join(SUITES)}")
    add("--data", action="append", default=[], metavar="TASK=PATH", help="a task's file (its env_config['path'])")
    add("--env-config", default="{}", help='env_config keys by task: JSON like {"gsm8k": {"limit": 9}}, or a file; the '
        'task "*" stands for all tasks')  # fmt: skip
    add_settings(parser, EvaluationSettings)
    add("--engine-kwargs", default="{}", help="more engine arguments, for vLLM its EngineArgs: JSON, or a file")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the dtype that is fast on this machine")
    add("--questions-in-flight", type=positive, help=f"default: as many as have {TRAJECTORIES_IN_FLIGHT} samples")


def read_settings(args: argparse.Namespace) -> EvaluationSettings:
    """The settings from the command line."""
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(EvaluationSettings) if hasattr(args, f.name)}
    kwargs = read_mapping(args.engine_kwargs, "--engine-kwargs")
    return EvaluationSettings(**given | {"engine_kwargs": kwargs, "dtype": args.dtype or fast_dtype()})


def read_env_configs(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """task -> the user's `env_config` keys, from `--env-config` and `--data`."""
    own = read_mapping(args.env_config, "--env-config")
    for task, keys in own.items():
        if not isinstance(keys, dict):
            raise ValueError(f"--env-config: the value of {task!r} must be a JSON object with env_config keys.")
    configs = {str(task): dict(keys) for task, keys in own.items()}
    for text in args.data:
        task, found, path = text.partition("=")
        if not (found and task and path):
            raise ValueError(f"--data {text!r}: write TASK=PATH.")
        configs.setdefault(task, {})["path"] = str(Path(path).expanduser().resolve())
    if (every := configs.pop(EVERY_TASK, None)) is not None:
        configs |= {task: every | configs.get(task, {}) for task in chosen_tasks(args)}
    return configs


def chosen_tasks(args: argparse.Namespace) -> list[str]:
    """The tasks of `--suite`, then those of `--tasks`."""
    return list(dict.fromkeys([*suite_tasks(names_in(args.suite)), *names_in(args.tasks)]))


def read_mapping(text: str, option: str) -> dict[str, Any]:
    """Reads an object from JSON text, or from a .json, .yaml or .yml file.

    Raises:
        ValueError: the text is not an object, or not readable; the message names `option`.
    """
    import yaml

    path = Path(text)
    if path.suffix in (".json", ".yaml", ".yml"):
        if not path.is_file():
            raise ValueError(f"{option} {text}: no such file.")
        text = path.read_text(encoding="utf-8")
    try:
        value = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{option}: cannot be read ({' '.join(str(error).split())}).") from error
    if not isinstance(value, Mapping):
        raise ValueError(f"{option}: must be an object with keys.")
    return dict(value)


def names_in(text: str) -> list[str]:
    """Turns "a, b" into ["a", "b"]; a repeated name counts once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def positive(text: str) -> int:
    """An integer >= 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= 1")
    return int(text)
