"""Writes an environment to begin with: a class, rows, a recipe, tests and a README, all of which run.

rllib-arpo new DIR
"""

import argparse
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from shutil import copyfile

from rllib_arpo.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a new or an empty folder")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    folder = Path(args.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} is not an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with as_file(files("rllib_arpo.commands") / "new_template") as template:
        for file in sorted(template.iterdir()):
            if file.is_file():
                copyfile(file, folder / file.name)
    print(f"{folder}/README.md says what is there. Begin with: cd {folder}; rllib-arpo try env.json --random 6")
    return 0
