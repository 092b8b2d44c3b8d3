"""Draws a run's recorded trees, or its curves, as HTML pages that need no network.

    rllib-arpo show ~/ray_results/ARPO_... --output pages
    rllib-arpo show TRIAL/trees/evaluation-00008.parquet --question ID
    rllib-arpo show --compare TRIAL/trees/evaluation-00000.parquet TRIAL/trees/evaluation-00008.parquet
    rllib-arpo show ~/ray_results/ARPO_... --plots --output plots

A page shows a question's tree, and each turn with its tokens shaded by their entropy, its tool call, the fork decision
in words and its advantages. The index of a run shows its accuracy, tool calls and forks, then the questions: those of
training first, and of these the ones whose rewards differ most. --plots draws all curves of a run, as PNG files and on
one page.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_arpo.errors import CommandError, command_errors
from rllib_arpo.show.pages import last_questions, make_pages, pairs, write_files

if TYPE_CHECKING:
    from rllib_arpo.plots.gallery import Drawn

#: Defaults of --output, without and with --plots, and of --limit.
PAGES, PLOTS, LIMIT = "pages", "plots", 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("record", nargs="?", metavar="RUN_OR_FILE", help="a parquet file of a record, or the folder of a run")
    add("--question", metavar="ID", help="only this question, every time it was recorded")
    add("--compare", nargs=2, metavar=("A", "B"),
        help="two records: put each question's first tree in A beside its last tree in B")  # fmt: skip
    add("--plots", action="store_true", help="draw the curves of the run instead of its trees")
    add("--output", metavar="FOLDER", help=f"folder for the files; default: {PAGES}, with --plots {PLOTS}")
    add("--limit", type=int, metavar="N", help=f"draw at most the last N questions; default: {LIMIT}")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    _check(args)
    with command_errors((ValueError, OSError)):
        if args.plots:
            return _draw_plots(args.record, Path(args.output or PLOTS))
        limit = args.limit or LIMIT
        if args.compare is not None:
            before, after = args.compare
            pages = make_pages(f"{before} and {after}", pairs(before, after, args.question, limit))
        else:
            found = last_questions(args.record, args.question, limit)
            pages = make_pages(args.record, found, _first_plots(args.record))
        *others, last = write_files(Path(args.output or PAGES), pages)
    more = f" and {len(others)} pages" if others else ""
    print(f"{last}{more}: open it in a browser.")
    return 0


def _check(args: argparse.Namespace) -> None:
    if (args.record is None) == (args.compare is None):
        raise CommandError("show: give either RUN_OR_FILE or --compare A B.")
    if args.limit is not None and args.limit < 1:
        raise CommandError(f"--limit {args.limit}: must be at least 1.")
    unread = [name for name in ("compare", "question", "limit") if getattr(args, name) is not None]
    if args.plots and unread:
        raise CommandError(f"--{unread[0]}: not with --plots, which draws no trees.")


def _first_plots(place: str) -> "list[Drawn]":
    """The plots above the list of questions, if `place` is the folder of one trial."""
    # They import matplotlib, and Ray.
    from ray.tune.result import EXPR_RESULT_FILE

    from rllib_arpo.plots.gallery import draw_first
    from rllib_arpo.plots.run_data import read_run

    folder = Path(place)
    trials = [path.parent for path in (*folder.glob(EXPR_RESULT_FILE), *folder.glob(f"*/{EXPR_RESULT_FILE}"))]
    return draw_first(read_run(trials[0])) if len(trials) == 1 else []


def _draw_plots(place: str, output: Path) -> int:
    # They import matplotlib.
    from rllib_arpo.plots.gallery import PAGE, draw_all, plot_files
    from rllib_arpo.plots.run_data import read_run, trial_folders

    folder, *others = trial_folders(Path(place))
    if others:
        raise CommandError(f"{place}: has {len(others) + 1} trials; name the folder of one, such as {folder}.")
    drawn = draw_all(read_run(folder))
    write_files(output, plot_files(folder.name, drawn))
    for one in drawn:
        if one.missing:
            print(f"{one.plot.title}: {one.missing}")
    images = sum(one.image is not None for one in drawn)
    print(f"{output / PAGE} and {images} PNG files: open it in a browser.")
    return 0
