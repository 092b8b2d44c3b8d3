"""Draws the recorded trees of a run as HTML pages that need no network.

    rllib-arpo show ~/ray_results/ARPO_... --output pages
    rllib-arpo show TRIAL/trees/evaluation-00008.parquet --question ID

A page shows a question's tree, and each turn with its tokens shaded by their entropy, its tool call, the fork decision
in words and its advantages. The index of a run lists its questions: those of training first, and of these the ones
whose rewards differ most.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.show.pages import last_questions, make_pages, write_files

#: The default of --limit.
LIMIT = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("record", metavar="RUN_OR_FILE", help="a parquet file of a record, or the folder of a run")
    add("--question", metavar="ID", help="only this question, every time it was recorded")
    add("--output", metavar="FOLDER", default="pages", help="folder for the files; default: %(default)s")
    add("--limit", type=int, default=LIMIT, metavar="N", help="draw at most the last N questions; default: %(default)s")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    if args.limit < 1:
        raise CommandError(f"--limit {args.limit}: must be at least 1.")
    with command_errors((ValueError, OSError)):
        found = last_questions(args.record, args.question, args.limit)
        *others, last = write_files(Path(args.output), make_pages(args.record, found))
    more = f" and {len(others)} pages" if others else ""
    print(f"{last}{more}: open it in a browser.")
    return 0
