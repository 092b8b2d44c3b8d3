"""Runs `rllib-arpo COMMAND`, which is also `python -m rllib_arpo COMMAND`.

A command is a module of this package with `add_arguments(parser)` and `run(args, argv)`. `run` returns the exit status,
and raises a `CommandError` if the command line, the data or the output folder is wrong. The first line of the module's
docstring describes the command in its help. A module is imported only when its command runs, which keeps help quick.
"""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

PROGRAM = "rllib-arpo"
#: Command -> its line in the list of all commands.
COMMANDS = {
    "evaluate": "score models on tasks, with the sampler and the tools of training",
    "entropy": "show where a model is unsure after tool responses, and what each rule would fork",
    "show": "draw a run's recorded trees as HTML pages",
    "log-run": "log a run to MLflow, from its folder",
    "cold-start": "fine-tune a model on tool-use transcripts",
    "export": "turn a checkpoint into a Hugging Face model",
    "index": "build a search index from files",
    "new": "write a new environment: a class, rows, tests, a training script",
    "try": "play a world by hand or at random, and fork it",
    "doctor": "check this machine, and whether a run fits into its memory",
    "import-cache": "add known search results to a cache",
}


def command_module(name: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"{__name__}.{'try_world' if name == 'try' else name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that `argv` (default: this process's arguments) names; returns the exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    if os.getcwd() not in sys.path and "" not in sys.path:
        # Like `python -m`: "module:name" then finds files in this folder.
        sys.path.insert(0, os.getcwd())
    args = _parser().parse_args(given[:1])
    return run_command(args.command, given[1:])


def run_command(name: str, argv: Sequence[str]) -> int:
    """Runs the command `name`. A `CommandError` prints its sentence and gives the status `WRONG`."""
    module = command_module(name)
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {name}", description=(module.__doc__ or "").partition("\n")[0])
    parser.add_argument("--traceback", action="store_true", help="with an error, also print its traceback")
    module.add_arguments(parser)
    args = parser.parse_args(argv)
    # Not earlier: importing the command's module takes longer than printing help.
    from rllib_arpo.errors import INTERRUPTED, WRONG, CommandError
    from rllib_arpo.terminal import printable

    try:
        return module.run(args, argv)
    except CommandError as error:
        if args.traceback:
            traceback.print_exc()
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<12} {summary}" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="ARPO for language models that call tools.",
        epilog=f"commands:\n{lines}\n\n{PROGRAM} COMMAND --help lists the arguments of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="a command from the list below")
    return parser
