"""Adds the entries of JSON files {key: text} to a cache of search results or judgements.

rllib-arpo import-cache CACHE.sqlite FILE.json...
"""

import argparse
from collections.abc import Sequence

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.errors import command_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cache", help="the sqlite file; a missing one is made")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a JSON file; later files overwrite earlier ones")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    with command_errors((DataError,)):
        cache = ResultCache(args.cache)
        for file in args.files:
            print(f"{file}: {cache.import_json(file)} entries.")
        print(f"{args.cache}: {len(cache)} entries in total.")
    return 0
