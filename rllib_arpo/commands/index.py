"""Builds a search index of passages from files.

    rllib-arpo index --output FOLDER FILE...

Each row of a .jsonl or .parquet file is a passage, with "text" or "contents" and perhaps a "title". A .json file is a
list of such rows.
"""

import argparse
from collections.abc import Sequence

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.retrieval.index import build_folder
from rllib_arpo.errors import command_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder for the index")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    with command_errors((DataError, OSError)):
        number = build_folder(args.files, args.output)
    print(f"{args.output}: {number} passages.")
    return 0
