"""Draws the recorded trees of a run as HTML pages that need no network.

    rllib-arpo show ~/ray_results/ARPO_... --output pages
    rllib-arpo show TRIAL/trees/evaluation-00008.parquet --question ID
    rllib-arpo show --compare TRIAL/trees/evaluation-00000.parquet TRIAL/trees/evaluation-00008.parquet

A page shows a question's tree, which trajectory waited for which tool, and each turn with its tokens shaded by their
entropy, its tool call, the fork decision in words and its advantages. An index of several questions has filters.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rllib_arpo.evaluation.errors import CommandError, command_errors
from rllib_arpo.show.pages import last_questions, pairs, write_pages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("record", nargs="?", metavar="RUN_OR_FILE", help="a parquet file of a record, or the folder of a run")
    add("--question", metavar="ID", help="only this question, each time that it was recorded")
    add(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="two records: shows each question as it was first in A and last in B, side by side",
    )
    add("--output", default="pages", metavar="FOLDER", help="for the pages; default: %(default)s")
    add(
        "--limit", type=int, default=200, metavar="N", help="at most so many pages, the last ones; default: %(default)s"
    )


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status.

    Raises:
        CommandError: the command line is wrong, or there is no such record or question.
    """
    if (args.record is None) == (args.compare is None):
        raise CommandError("show: give either RUN_OR_FILE or --compare A B.")
    if args.limit < 1:
        raise CommandError(f"--limit {args.limit}: must be at least 1.")
    with command_errors((ValueError, OSError)):
        if args.compare is not None:
            title, shown = " and ".join(args.compare), pairs(*args.compare, args.question, args.limit)
        else:
            title, shown = args.record, last_questions(args.record, args.question, args.limit)
        paths = write_pages(Path(args.output), title, shown)
    more = f" and {len(paths) - 1} pages" if len(paths) > 1 else ""
    print(f"{paths[0]}{more}: open it in a browser.")
    return 0
