"""Checks this machine, and gives advice where a check fails.

    rllib-arpo doctor
    rllib-arpo doctor tuned_examples/reasoning_arpo.py --model M --data D --gpu-memory-gb 80
    rllib-arpo doctor --rows tuned_examples/reasoning_arpo.py --model M --data D --index I

With a recipe and its arguments the command also computes the memory that the run needs, and compares it with the GPUs
of this machine or with GPUs of the size in --gpu-memory-gb. It starts neither Ray nor an engine. A recipe that makes
its own model makes it first, unless --model names one. The command checks only the memory; training validates the rest
of the configuration. With --rows it also asks every question of the data once, as training would. The exit status is 1
if training would not work on this machine or in this memory, and 0 otherwise.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rllib_arpo.doctor.budget import budget_checks, budget_text, decide, gpu_memory, read_run
from rllib_arpo.doctor.checks import Check, Mark, Memory, exit_status, machine_checks, memory_of_this_machine, report
from rllib_arpo.envs.env_config import read_env_config
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.prompt import asked_alone, build_prompt
from rllib_arpo.envs.registry import ENVIRONMENTS, with_task
from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.recipes.contract import load_recipe
from rllib_arpo.recipes.run import use_arguments
from rllib_arpo.rollout.make_env import complete_env_config

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from rllib_arpo.arpo_config import ARPOConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [-h] [--traceback] [--rows] [RECIPE [ARGUMENT ...] [--gpu-memory-gb GB]]"
    parser.add_argument(
        "--rows", action="store_true", help="also find the rows of the recipe's data that cannot be asked; reads all"
    )
    parser.add_argument(
        "recipe",
        nargs=argparse.REMAINDER,
        metavar="RECIPE ...",
        help="a recipe (its file or its module) and its own arguments; only the memory of its run is checked. One "
        "argument more is --gpu-memory-gb: compare with GPUs of this many GB (10^9 bytes), not with this machine's",
    )


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    if args.rows and not args.recipe:
        raise CommandError("--rows: name the recipe whose data it should read.")
    memory = memory_of_this_machine()
    checks = machine_checks(memory)
    print(report(checks))
    if args.recipe:
        text, of_run = _budget(args.recipe, memory, args.rows)
        print(f"\n{text}\n\n{report(of_run)}")
        checks += of_run
    return exit_status(checks)


def _budget(command: Sequence[str], memory: Memory, rows: bool) -> tuple[str, list[Check]]:
    """The budget of a recipe's run as a text, and its checks; with `rows` also the checks of the data."""
    with command_errors():
        recipe = load_recipe(command[0])
        args = parse_arguments(recipe, command[1:])
        if args.gpu_memory_gb is not None and not 0 < args.gpu_memory_gb < float("inf"):
            raise CommandError(f"--gpu-memory-gb {args.gpu_memory_gb:g}: must be a positive number.")
        config = recipe_config(recipe, args, len(memory.gpus) or int(args.gpu_memory_gb is not None))
        run = decide(read_run(config), memory, args.gpu_memory_gb)
        of_data = data_checks(config) if rows else []
    text = budget_text(run, gpu_memory(memory, args.gpu_memory_gb))
    return text, budget_checks(run, memory, args.gpu_memory_gb) + of_data


def parse_arguments(recipe: ModuleType, argv: Sequence[str]) -> argparse.Namespace:
    """The recipe's arguments, with the doctor's own `--gpu-memory-gb`, and `--model` for any recipe."""
    prog = f"rllib-arpo doctor {Path(str(recipe.__file__)).name}"
    parser = argparse.ArgumentParser(prog=prog, parents=[recipe.parser], add_help=False, allow_abbrev=False)
    parser.add_argument("--gpu-memory-gb", type=float, help="GB (10^9 bytes) of each GPU")
    with suppress(argparse.ArgumentError):  # The recipe has this option itself.
        parser.add_argument("--model", help="check a run of this model instead of the one that the recipe makes")
    return parser.parse_args(argv)


def recipe_config(recipe: ModuleType, args: argparse.Namespace, num_gpus: int) -> ARPOConfig:
    """The configuration of a recipe's run on a machine with this number of GPUs; makes the model if it must."""
    if args.model is None:
        print("The recipe makes its model now if it is not there yet; --model checks another one.", flush=True)
    config: ARPOConfig = recipe.make_config(args.model or recipe.make_model(args), args)
    use_arguments(config, args, num_gpus)
    return config


def data_checks(config: ARPOConfig) -> list[Check]:
    """A check of the training questions, and one of the evaluation questions.

    Raises:
        ValueError: the environment or its data are wrong as a whole.
    """
    checks = [_check("training data", config)]
    evaluation = config.get_evaluation_config_object()
    if config.evaluation_interval and evaluation is not None:
        checks.append(_check("evaluation data", evaluation))
    return checks


def _check(name: str, config: AlgorithmConfig) -> Check:
    if config.env not in ENVIRONMENTS:
        return Check(Mark.OK, name, f"not read: env={config.env!r} is not one of {', '.join(ENVIRONMENTS)}")
    env_config, task, tools = read_env_config(with_task(config.env, complete_env_config(config)))
    if task.num_questions is None:
        return Check(Mark.OK, name, "generated without end")
    chat = env_config.make_chat()
    protocol = env_config.make_protocol(tools, chat)
    bad: list[str] = []
    asked = Counter[object]()
    for number in range(task.num_questions):
        try:
            question = task.question(number, tuple(tools))
            if env_config.world is None:  # A world ends the prompt when it is reset.
                build_prompt(chat, protocol, asked_alone(question, env_config), env_config)
                asked[question.messages] += 1
        except DataError as error:
            bad.append(str(error))
    if not bad:
        repeated = asked.total() - len(asked)
        again = f"; {repeated:,} repeat{'s' * (repeated == 1)} an earlier one" if repeated else ""
        return Check(Mark.OK, name, f"all {task.num_questions:,} questions can be asked{again}")
    found = f"{len(bad):,} of {task.num_questions:,} questions cannot be asked. {min(bad)}"
    if config.on_bad_row == "skip":
        return Check(Mark.WARNING, name, found.rstrip("."), "They are left out and counted (questions_given_up).")
    return Check(Mark.MISSING, name, found.rstrip("."), 'Mend them, or set on_bad_row="skip".')
