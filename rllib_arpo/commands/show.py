"""Draws a run's curves and recorded trees as HTML pages that need no network.

    rllib-arpo show ~/ray_results/ARPO_... --output pages
    rllib-arpo show TRIAL/trees/evaluation-00008.parquet --question ID

A page shows a question's tree, and each turn with its tokens shaded by their entropy, its tool call, the fork decision
in words and its advantages. The index of a run shows its curves and its questions: those of training first, and of
these the ones whose rewards differ most.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.record.recorder import RECORD_FOLDER
from rllib_arpo.show.pages import last_questions, make_pages, write_files

if TYPE_CHECKING:
    from rllib_arpo.plots.gallery import Drawn

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
        drawn = _plots(Path(args.record))
        # A run may have results and no record.
        has_record = not drawn or any(Path(args.record).rglob(f"{RECORD_FOLDER}/*.parquet"))
        found = last_questions(args.record, args.question, args.limit) if has_record else []
        *others, last = write_files(Path(args.output), make_pages(args.record, found, drawn))
    more = f" and {len(others)} pages" if others else ""
    print(f"{last}{more}: open it in a browser.")
    return 0


def _plots(folder: Path) -> "list[Drawn]":
    """The curves of a run, if this is the folder of one trial with results."""
    # They import matplotlib, and Ray.
    from ray.tune.result import EXPR_RESULT_FILE

    from rllib_arpo.plots.gallery import draw_all
    from rllib_arpo.plots.run_data import read_run

    trials = [path.parent for path in (*folder.glob(EXPR_RESULT_FILE), *folder.glob(f"*/{EXPR_RESULT_FILE}"))]
    return draw_all(read_run(trials[0]), print) if len(trials) == 1 else []
