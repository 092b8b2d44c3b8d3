"""Checks this machine, and gives advice where a check fails.

    rllib-arpo doctor
    rllib-arpo doctor tuned_examples/reasoning_arpo.py --model M --data D --gpu-memory-gb 80
    rllib-arpo doctor --rows tuned_examples/reasoning_arpo.py --model M --data D

With a recipe and its arguments it also computes the memory that the run needs, and compares it with the GPUs of this
machine, or with GPUs of the size that the option --gpu-memory-gb gives. It starts neither Ray nor an engine, and loads
no weights. That a run fits means its memory only: the command does not validate the configuration, which training does.
With --rows it also asks every question of the data once, as training would. The exit status is 1 if training would not
work on this machine or in this memory, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence

from rllib_arpo.doctor.budget_report import budget_checks, budget_text, decide, gpu_memory
from rllib_arpo.doctor.check_lines import Check, exit_status, report
from rllib_arpo.doctor.data_checks import data_checks
from rllib_arpo.doctor.machine_checks import Memory, machine_checks, memory_of_this_machine
from rllib_arpo.doctor.recipe import load_recipe, parse_arguments, read_run
from rllib_arpo.errors import CommandError, command_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [-h] [--traceback] [--gpu-memory-gb GB] [--rows] [RECIPE [ARGUMENT ...]]"
    parser.add_argument(
        "--gpu-memory-gb",
        type=float,
        metavar="GB",
        help="compare the recipe's run with GPUs of so many GB (10^9 bytes), not with those of this machine",
    )
    parser.add_argument(
        "--rows", action="store_true", help="find the rows of the recipe's data that cannot be asked; reads all of them"
    )
    parser.add_argument(
        "recipe",
        nargs=argparse.REMAINDER,
        metavar="RECIPE ...",
        help="a tuned example and its own arguments; only the memory of its run is checked, not its other settings",
    )


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status.

    Raises:
        CommandError: the recipe, its arguments or its model are wrong, or a size of GPUs comes without a recipe.
    """
    if args.gpu_memory_gb is not None and not args.recipe:
        raise CommandError(f"--gpu-memory-gb {args.gpu_memory_gb:g}: give the recipe whose run needs such GPUs.")
    if args.rows and not args.recipe:
        raise CommandError("--rows: give the recipe whose data are to be read.")
    memory = memory_of_this_machine()
    checks = machine_checks(memory)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(report(checks, width))
    if args.recipe:
        text, of_run = _budget(args.recipe, memory, args.gpu_memory_gb, args.rows)
        print(f"\n{text}\n\n{report(of_run, width)}")
        checks += of_run
    return exit_status(checks)


def _budget(command: Sequence[str], memory: Memory, gpu_memory_gb: float | None, rows: bool) -> tuple[str, list[Check]]:
    """The budget's text and its checks, of a recipe's file and arguments; `rows`: those of the data as well."""
    with command_errors():
        recipe = load_recipe(command[0])
        args = parse_arguments(recipe, command[1:], gpu_memory_gb)
        if args.gpu_memory_gb is not None and not args.gpu_memory_gb > 0:
            raise CommandError(f"--gpu-memory-gb {args.gpu_memory_gb:g}: must be positive.")
        config = recipe.make_config(args)
        run = decide(read_run(config), memory, args.gpu_memory_gb)
        of_data = data_checks(config) if rows else []
    text = budget_text(run, gpu_memory(memory, args.gpu_memory_gb))
    return text, budget_checks(run, memory, args.gpu_memory_gb) + of_data
