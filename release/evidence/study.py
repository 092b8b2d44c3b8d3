"""Runs a study: arms over seeds, a few runs at a time; then its tables and its learning curves.

    python -m release.evidence.study release/evidence/studies/trails_small.yaml --output DIR --seeds 0 1 2 --jobs 2
    python -m release.evidence.study release/evidence/studies/trails_small.yaml --output DIR \\
        --collect release/evidence/results/trails-small.parquet
    python -m release.evidence.study --table release/evidence/results/trails-small.parquet

The same command goes on where it was stopped: finished runs are kept if they have the settings that the study's file
gives them now, a run that was cut off is begun again. `--rows FILE` takes finished runs from rows that were collected
before, in DIR or elsewhere. DIR gets the rows of each run and its log, `tables.md` and
`curves.png`. `--collect` and `--table` run nothing. The exit status is 1 if a run failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from release.evidence import curves
from release.evidence.study_figures import finished_runs
from release.evidence.study_file import Study, read_study, study_of
from release.evidence.study_rows import Row, read_output, read_table, unpack, write_table
from release.evidence.study_run import package_version
from release.evidence.study_schedule import Schedule, jobs_of, make_model, process_of
from release.evidence.study_table import all_tables


def collect(output: Path, table: Path) -> str:
    """Writes the rows of all finished runs of a folder to one file; returns what was done, in a sentence.

    Raises:
        ValueError: no run is finished.
    """
    runs, unfinished = finished_runs(read_output(output))
    if not runs:
        raise ValueError(f"{output}: has no finished run.")
    write_table([row for run in runs for row in run.rows], table)
    return f"{table}: {len(runs)} runs; left out, not finished: {'; '.join(unfinished) or 'none'}."


def show(study: Study, rows: Sequence[Row], args: argparse.Namespace, folder: Path | None) -> None:
    """Prints the tables of the arms that are asked for; into `folder` go they and the curves."""
    chosen = [row for row in rows if args.arms is None or row["arm"] in args.arms]
    baseline = args.baseline or study.baseline
    tables = all_tables(chosen, baseline, study.accuracies_to_reach, study.calls)
    print(tables)
    finished, _ = finished_runs(chosen)
    if folder is not None and finished:
        (folder / "tables.md").write_text(tables)
        curves.draw([row for run in finished for row in run.rows], folder / "curves.png")


def check_names(study: Study, args: argparse.Namespace) -> None:
    """Raises ValueError where an arm of the command line is none of the study's."""
    study.arms_named([*(args.arms or ()), *([args.baseline] if args.baseline else ())])


def study_of_rows(rows: Sequence[Row], table: Path) -> Study:
    """The study that rows name.

    Raises:
        ValueError: there is no file of it.
    """
    path = study_of(rows[0]["study"])
    if not path.is_file():
        raise ValueError(f"{table}: is of the study {rows[0]['study']!r}, which has no file {path}; name its file.")
    return read_study(path)


def run(study: Study, args: argparse.Namespace) -> int:
    """Runs what is missing, and shows what there is; the number of runs that failed.

    Raises:
        ValueError: an arm is unknown, or the folder has rows of other settings.
    """
    check_names(study, args)
    arms = study.arms_named(args.arms)
    args.output.mkdir(parents=True, exist_ok=True)
    if args.rows is not None:
        settings = {arm.name: study.settings_hash(arm) for arm in study.arms.values()}
        taken = unpack(args.rows, args.output, settings, package_version())
        print(f"{args.rows}: {taken} finished runs taken from it", flush=True)
    at_a_time = args.jobs or study.jobs
    schedule = Schedule(study, args.output, process_of(study, args.output, at_a_time), make_model(study, args.output))
    failed = schedule.run(jobs_of(arms, args.seeds), at_a_time)
    show(study, read_output(args.output), args, args.output)
    if failed:
        print(f"failed: {'; '.join(map(str, failed))}")
    return len(failed)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, nargs="?", help="a file of release/evidence/studies")
    parser.add_argument("--output", type=Path, help="folder of the runs")
    parser.add_argument("--arms", nargs="+", help="default: all")
    parser.add_argument("--baseline", metavar="ARM", help="compare with this arm; default: the study's baseline")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of the study")
    parser.add_argument("--jobs", type=int, help="runs at a time; default: the study's")
    parser.add_argument("--rows", type=Path, help="a .parquet file whose finished runs are not run again")
    parser.add_argument("--collect", type=Path, metavar="ROWS", help="write the rows of --output to one .parquet file")
    parser.add_argument("--table", type=Path, metavar="ROWS", help="the tables of a .parquet file")
    return parser


def main() -> int:
    parser = make_parser()
    args = parser.parse_args()
    if args.table is None and (args.study is None or args.output is None):
        parser.error("a study and --output are needed, or --table.")
    # The runs that were started end with the study.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if args.table is not None:
            rows = read_table(args.table)
            study = read_study(args.study) if args.study else study_of_rows(rows, args.table)
            check_names(study, args)
            show(study, rows, args, args.output)
            return 0
        if args.collect is not None:
            print(collect(args.output, args.collect))
            return 0
        return 1 if run(read_study(args.study), args) else 0
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
