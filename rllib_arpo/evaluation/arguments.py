"""Declares and reads the command-line options that `rllib-arpo evaluate` and `rllib-arpo entropy` share."""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS
from rllib_arpo.envs.registry import task_keys
from rllib_arpo.evaluation.metrics import SUITES, suite_tasks
from rllib_arpo.evaluation.plan import EvaluationSettings
from rllib_arpo.policy.compilation import fast_dtype

#: The key of `--env-config` for every task.
EVERY_TASK = "*"
#: Default number of trajectories in flight.
TRAJECTORIES_IN_FLIGHT = 64
#: Endings of data files below `--data-root`.
SUFFIXES = (".jsonl", ".json", ".parquet")
MODEL_HELP = "a Hugging Face folder or id, or a checkpoint of ARPO"


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `read_settings` and `read_env_configs` read, and the engine's options."""
    defaults, add = EvaluationSettings(), parser.add_argument
    add("--tasks", default="", help="names of tasks, separated by commas")
    add("--suite", default="", help=f"suites of the paper, separated by commas: {', '.join(SUITES)}")
    add("--data", action="append", default=[], metavar="TASK=PATH", help="a task's file (its env_config['path'])")
    add("--data-root", help="folder with TASK.jsonl or TASK/test.jsonl (.json, .parquet) for the tasks without --data")
    add("--env-config", default="{}", help='env_config keys by task: JSON like {"gsm8k": {"few_shot": 2}}, or a file;'
        ' the task "*" stands for all tasks')  # fmt: skip
    add("--samples", type=int, default=defaults.samples, help="samples per question, each with its own seed")
    add("--temperature", type=float, default=defaults.temperature, help="0 decodes greedily and needs --samples 1")
    add("--top-p", type=float, help="sample from the likeliest tokens with this share of the probability; default: all")
    add("--top-k", type=int, help="sample from this many of the likeliest tokens; default: all")
    add("--repetition-penalty", type=float, help="divide positive logits of earlier tokens by this; default: none")
    add("--seed", type=int, default=defaults.seed, help="the samples' seeds are made from this one")
    add("--limit", type=int, help="ask only this many questions of each task, from the first on")
    add("--protocol", help="how the model calls tools; default: the environment's protocol")
    add("--few-shot", type=int, help="number of worked examples in the prompt, for tasks that have some")
    for key in ("max_tool_calls", "max_response_tokens", "max_turn_tokens", "max_context_tokens"):
        add(f"--{key.replace('_', '-')}", type=int, default=getattr(defaults, key), help="as in ARPOConfig")
    add("--max-calls-per-tool", type=tool_limits, metavar="TOOL=N,...",
        help="refuse more calls of a tool; N must be below --max-tool-calls")  # fmt: skip
    add("--question-deadline", dest="question_deadline_s", type=float, default=defaults.question_deadline_s,
        help="seconds after which a question's unfinished samples are cut off")  # fmt: skip
    add("--entropy-estimator", choices=ENTROPY_ESTIMATORS, default=defaults.entropy_estimator, help="as in ARPOConfig")
    add("--engine", default=defaults.engine, help="vllm, or scripted, which has no model and calls the tools at random")
    add("--engine-kwargs", default="{}", help="more engine arguments, for vLLM its EngineArgs: JSON, or a file")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the dtype that is fast on this machine")
    add("--num-threads", type=positive, help="CPU threads of the engine; default: all")
    add("--questions-in-flight", type=positive, help=f"default: as many as have {TRAJECTORIES_IN_FLIGHT} samples")


def read_settings(args: argparse.Namespace) -> EvaluationSettings:
    """The settings from the command line."""
    names = {f.name for f in dataclasses.fields(EvaluationSettings)} - {"engine_kwargs", "dtype"}
    given = {name: getattr(args, name) for name in names}
    return EvaluationSettings(
        **given, engine_kwargs=read_mapping(args.engine_kwargs, "--engine-kwargs"), dtype=args.dtype or fast_dtype()
    )


def read_env_configs(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """task -> the user's `env_config` keys, from `--env-config`, `--data` and `--data-root`."""
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
    if args.data_root is not None:
        for task in chosen_tasks(args):
            keys = configs.setdefault(task, {})
            if "path" in task_keys(task) and not any(keys.get(key) for key in ("path", "hub_id")):
                keys["path"] = str(_data_file(Path(args.data_root).expanduser().resolve(), task))
    return configs


def chosen_tasks(args: argparse.Namespace) -> list[str]:
    """The tasks of `--suite`, then those of `--tasks`."""
    return list(dict.fromkeys([*suite_tasks(names_in(args.suite)), *names_in(args.tasks)]))


def _data_file(root: Path, task: str) -> Path:
    """A file such as simpleqa.jsonl, or simpleqa/test.jsonl like in the authors' repository, in lower or upper case."""
    if not root.is_dir():
        raise ValueError(f"--data-root {root}: no such folder.")
    names = {f"{task}{suffix}" for suffix in SUFFIXES} | {f"{task}/test{suffix}" for suffix in SUFFIXES}
    files = [path for pattern in ("*", "*/test.*") for path in root.glob(pattern) if path.is_file()]
    found = sorted(path for path in files if path.relative_to(root).as_posix().lower() in names)
    if not found:
        raise ValueError(
            f"--data-root {root} has no file for the task {task!r}: neither {task}.jsonl (.json, .parquet) nor"
            f" {task}/test.jsonl; name its file with --data {task}=PATH."
        )
    if len(found) > 1:
        several = ", ".join(str(path.relative_to(root)) for path in found)
        raise ValueError(
            f"--data-root {root} has {len(found)} files for the task {task!r} ({several}); choose one with --data."
        )
    return found[0]


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


def tool_limits(text: str) -> dict[str, int]:
    """Turns "python=5,search=10" into {"python": 5, "search": 10}, for argparse."""
    limits = {}
    for part in text.split(","):
        name, found, number = (piece.strip() for piece in part.partition("="))
        if not (name and found) or name in limits:
            raise argparse.ArgumentTypeError(f"{text!r} is not TOOL=N,TOOL=N,...")
        limits[name] = positive(number)
    return limits
