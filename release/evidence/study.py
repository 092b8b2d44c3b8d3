"""Runs a study, each arm with each seed and a few runs at a time; then makes its tables and learning curves.

    python -m release.evidence.study release/evidence/studies/trails_small.yaml --output DIR --arms grpo threshold
    python -m release.evidence.study --table release/evidence/results/trails-small.parquet
    python -m release.evidence.study my_study.yaml --table DIR/rows.parquet

The same command goes on where it was stopped: it keeps finished runs, if their settings are still those of the study's
file, and begins a run again that was cut off. Before anything runs it makes the models and checks the configuration of
every arm. DIR gets the rows and the log of each run, `rows.parquet` with the rows of all finished runs, `tables.md` and
`curves.png`. `--table` runs nothing. The exit status is 1 if a run failed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import torch

from release.evidence.study_figures import finished_runs
from release.evidence.study_file import Arm, StartModel, Study, read_study, recipe_code, study_of
from release.evidence.study_rows import (
    LEARNER_METRICS,
    ROLLOUT_METRICS,
    Row,
    append_row,
    fork_rate,
    is_finished,
    read_output,
    read_run,
    read_table,
    run_path,
    write_table,
)
from release.evidence.study_table import all_tables, draw_curves
from rllib_arpo.arpo import OTHER_QUESTIONS, asks_training_questions
from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.metric import number_at
from rllib_arpo.files import take_lock
from rllib_arpo.recipes.contract import load_recipe
from rllib_arpo.recipes.run import use_arguments
from rllib_arpo.tracking.machine import commit, git_says, machine, versions

REPOSITORY = Path(__file__).resolve().parents[2]
POLL_S = 0.5
#: Options of every recipe that a study sets itself, or that its runs do not read.
UNREAD = frozenset(
    {"seed", "stop_reward", "stop_iters", "output", "resume", "max_failures", "checkpoint_freq", "checkpoint_at_end"}
    | {"num_cpus", "verbose", "evaluation_interval"}
)


@dataclass(frozen=True, slots=True)
class Job:
    """One run; its rows are in the folder `output`."""

    study: Study
    arm: Arm
    seed: int
    output: Path

    def __str__(self) -> str:
        return f"{self.arm.name}, seed {self.seed}"

    @property
    def path(self) -> Path:
        return run_path(self.output, self.arm.name, self.seed)

    @property
    def is_finished(self) -> bool:
        return is_finished(read_run(self.path), self.arm.iterations)

    @property
    def source(self) -> Job | None:
        """The run whose fork rate this one takes."""
        name = self.arm.fork_rate_of
        return None if name is None else Job(self.study, self.study.arms[name], self.seed, self.output)

    @property
    def can_start(self) -> bool:
        return self.source is None or self.source.is_finished

    def check(self) -> None:
        """Raises ValueError if rows of this run or its source have other settings, another version or fork rate."""
        if self.source is not None:
            self.source.check()
        rows = read_run(self.path)
        if not rows:
            return
        wanted: dict[str, Any] = {"study": self.study.name, "last_iteration": self.arm.iterations}
        if self.can_start:
            wanted["arguments"] = shlex.join(arguments_of(self.study, self.arm, self.seed, self.output))
        # Last comes what may be the recipe's code, `evaluate_every` or the arm with the fork rate.
        wanted |= {"package_version": package_version(), "settings_hash": self.study.settings_hash(self.arm)}
        for column, value in wanted.items():
            if rows[0][column] != value:
                raise ValueError(
                    f"{self.path}: its run had {column}={rows[0][column]!r}, not {value!r}; name another --output, or "
                    "delete this file."
                )


def jobs_of(study: Study, arms: Sequence[str] | None, seeds: Sequence[int] | None, output: Path) -> list[Job]:
    """The runs seed by seed, so finished runs can be paired early; each once.

    Args:
        arms: their names; None: all.
        seeds: only these; None: all.

    Raises:
        ValueError: an arm does not exist, or none of the arms plans a seed.
    """
    chosen = study.arms_to_run(arms)
    study.check_seeds(seeds, chosen)
    wanted = [(arm, seed) for arm in chosen for seed in arm.seeds if seeds is None or seed in seeds]
    return sorted((Job(study, arm, seed, output) for arm, seed in wanted), key=lambda job: job.seed)


def run_missing(jobs: Sequence[Job], at_a_time: int, start: Callable[[Job], subprocess.Popen]) -> list[Job]:
    """Runs the missing ones of `jobs` in order; a run that needs the fork rate of another one waits for it.

    Returns:
        the runs that failed, and those that waited for one that failed.

    Raises:
        ValueError: the folder has rows from other settings; nothing was started.
    """
    for job in jobs:
        job.check()
    pending, failed = [job for job in jobs if not job.is_finished], []
    running: list[tuple[Job, subprocess.Popen]] = []
    begin, total = time.monotonic(), len(pending)
    try:
        while pending or running:
            free = at_a_time - len(running)
            for job in [job for job in pending if job.can_start][:free]:
                pending.remove(job)
                running.append((job, start(job)))
            if not running:
                waiting = "; ".join(f"{job} (of {job.source})" for job in pending)
                print(f"not run, since the run with their fork rate is missing: {waiting}")
                return [*failed, *pending]
            time.sleep(POLL_S)
            for job, process in [one for one in running if one[1].poll() is not None]:
                running.remove((job, process))
                failed += [job] if process.returncode else []
                log = job.path.with_suffix(".log")
                outcome = f"failed ({_cause(process.returncode, log)}), see {log}" if process.returncode else "done"
                done, minutes = total - len(pending) - len(running), (time.monotonic() - begin) / 60
                print(f"{job}: {outcome}; {done} of {total} runs after {minutes:.0f} min", flush=True)
                for line in dict.fromkeys(line for line in _lines(log) if line.startswith("WARNING rllib_arpo")):
                    print(f"  {line}", flush=True)
    finally:
        for _, process in running:
            process.terminate()
    return failed


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.is_file() else []


def _cause(code: int, log: Path) -> str:
    """Why a run failed: the signal that ended it, or the last line of its log."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return next((line.strip() for line in reversed(_lines(log)) if line.strip()), f"exit status {code}")


def process_of(lock: IO[str], at_a_time: int) -> Callable[[Job], subprocess.Popen]:
    """A function that starts a run in its own process and sends the output to the run's log; processes share the cores.

    The process stays in the current folder, where a user's recipe may lie.

    Args:
        lock: each run holds it until it ends.

    Raises:
        ValueError: runs of an earlier call still write into the folder, even if the call itself was killed.
    """
    folder = Path(lock.name).parent
    take_lock(lock, f"{folder}: runs of an earlier call still write into it; wait for them, or end them.")
    threads = max(1, len(os.sched_getaffinity(0)) // at_a_time)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))

    def start(job: Job) -> subprocess.Popen:
        command = [sys.executable, "-m", "release.evidence.study", str(job.study.path), "--output", str(job.output)]
        command += ["--arms", job.arm.name, "--seeds", str(job.seed), "--here"]
        with job.path.with_suffix(".log").open("w") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()]
            )

    return start


def run_study(study: Study, args: argparse.Namespace) -> int:
    """Runs what is missing, shows what there is, and returns how many runs failed."""
    if args.output.is_file():
        raise ValueError(f"--output {args.output}: is a file, and must be a folder.")
    recipe_code(study.recipe)
    jobs = jobs_of(study, args.arms, args.seeds, args.output)
    can_run = [name for name, arm in study.arms.items() if arm.last_commit is None]
    for job in jobs_of(study, can_run, None, args.output):
        job.check()  # Rows of other arms also enter the tables.
    prepare([job for job in jobs if not job.is_finished])
    args.output.mkdir(parents=True, exist_ok=True)
    with (args.output / "lock").open("w") as lock:
        failed = run_missing(jobs, study.jobs, process_of(lock, study.jobs))
    rows = read_output(args.output)
    if finished := finished_runs(_planned(study, rows))[0]:
        write_table([row for one in finished for row in one.rows], args.output / "rows.parquet")
    show(study, rows, args)
    if failed:
        print(f"failed: {'; '.join(map(str, failed))}")
    return len(failed)


def show(study: Study, rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Prints the tables of the chosen arms and seeds; writes all tables and curves to `args.output` if it is given.

    Runs that were planned and have no row, and those that were not planned, are named at the end.
    """
    print(_tables(study, rows, args.baseline, args.arms, args.seeds))
    finished, _ = finished_runs(_planned(study, rows))
    if args.output is not None and finished:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "tables.md").write_text(_tables(study, rows, args.baseline))
        draw_curves(finished, args.output / "curves.png")


def _planned(study: Study, rows: Iterable[Row]) -> list[Row]:
    """The rows of runs that the study plans."""
    return [row for row in rows if row["arm"] in study.arms and row["seed"] in study.arms[row["arm"]].seeds]


def _tables(
    study: Study,
    rows: Sequence[Row],
    baseline: str | None,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> str:
    chosen = [row for row in _planned(study, rows) if seeds is None or row["seed"] in seeds]
    tables = all_tables(chosen, baseline or study.baseline, study.accuracies_to_reach, study.calls, arms)
    begun = {(row["arm"], row["seed"]) for row in rows}
    plan = {(arm.name, seed) for arm in study.arms.values() for seed in arm.seeds}
    chosen_plan = {run for run in plan if (arms is None or run[0] in arms) and (seeds is None or run[1] in seeds)}
    for what, runs in (("planned, without a row", chosen_plan - begun), ("not planned, left out", begun - plan)):
        if runs:
            tables += f"- {what}: {'; '.join(f'{arm}, seed {seed}' for arm, seed in sorted(runs))}\n"
    return tables


def run_one(study: Study, arm: Arm, seed: int, output: Path) -> None:
    """Trains and writes the rows; evaluates before training and after every `arm.evaluate_every`-th iteration.

    First it deletes the rows that a killed run of this arm and seed has left.
    """
    arguments = arguments_of(study, arm, seed, output)
    config = arm_config_of(study, [*arguments, "--seed", str(seed)])
    algorithm = config.build_algo()
    algorithm.evaluates_first = False  # The study evaluates, outside of the seconds that it counts.
    path = run_path(output, arm.name, seed)
    path.unlink(missing_ok=True)
    own = {"study": study.name, "arm": arm.name, "seed": seed, "last_iteration": arm.iterations}
    own |= provenance(study, arm, arguments) | {"start_model": weights_hash(config.model_name_or_path)}
    totals: dict[str, Any] = {"tool_calls": 0, "generated_tokens": 0, "computed_tokens": 0}
    totals |= {"seconds": 0.0, "cpu_seconds": 0.0}
    for iteration in range(arm.iterations + 1):
        figures = _train(algorithm, totals) if iteration else {}
        if iteration % arm.evaluate_every == 0:
            figures["accuracy"] = float(algorithm.evaluate()["env_runners"]["accuracy"])
        append_row(path, own | {"iteration": iteration} | totals | figures)
    algorithm.stop()


def arguments_of(study: Study, arm: Arm, seed: int, output: Path) -> list[str]:
    """The recipe's arguments, with those of the seed's start model, and the fork rate of the run it comes from."""
    source = arm.fork_rate_of
    rate = None if source is None else fork_rate(read_run(run_path(output, source, seed)))
    return [*study.all_arguments(arm, rate), *study.start_model(seed).arguments]


def prepare(jobs: Iterable[Job]) -> None:
    """Makes the start models of the jobs, if they are not there, and checks their configurations before anything runs.

    Raises:
        ValueError: one is wrong, or this machine cannot run it, or a start model has other weights than the file says,
            or than the seed's rows have.
    """
    checked: set[str] = set()
    models: dict[str, str] = {}
    seeds: set[int] = set()
    for job in jobs:
        start = job.study.start_model(job.seed)
        named = shlex.join(start.arguments)
        names = {f"arm {job.arm.name}", f"start model {named}"}
        if not names <= checked:
            checked |= names
            models[named] = weights_hash(_checked_config(job, start).model_name_or_path)
        if twice := [other for other in models if other != named and models[other] == models[named]]:
            raise ValueError(f"start_models: {twice[0]!r} and {named!r} give the same weights.")
        if job.seed not in seeds:
            seeds.add(job.seed)
            _check_weights(job, start, models[named])


def _checked_config(job: Job, start: StartModel) -> ARPOConfig:
    """The configuration of a job; an error names its arm."""
    try:
        rate = None if job.source is None else 0.5  # Not known yet; any rate will do.
        arguments = [*job.study.all_arguments(job.arm, rate), *start.arguments]
        _refuse_unread(job.study, arguments)
        config = arm_config_of(job.study, arguments)
        if job.source is not None:
            if config.branching != "random":
                raise ValueError("fork_rate_of needs --branching random.")
            of_source = [*job.study.all_arguments(job.source.arm), *start.arguments]
            if arm_config_of(job.study, of_source).branching == "never":
                raise ValueError(f"fork_rate_of: {job.source.arm.name} never forks.")
        config.validate()
        if asks_training_questions(config, config.get_evaluation_config_object()):
            raise ValueError(f"the evaluation asks training's questions; {OTHER_QUESTIONS}.")
        return config
    except ValueError as error:
        raise ValueError(f"arm {job.arm.name}: {error}") from error
    except Exception as error:
        error.add_note(f"This was arm {job.arm.name} of {job.study.path}.")
        raise


def _check_weights(job: Job, start: StartModel, made: str) -> None:
    """Raises ValueError if a start model has other weights than the file says, or than the seed's rows have."""
    if start.sha256 not in (None, made):
        raise ValueError(f"start_models: {shlex.join(start.arguments)!r} gives {made}, not {start.sha256}.")
    for path in (run_path(job.output, arm, job.seed) for arm in job.study.arms):
        if (rows := read_run(path)) and rows[0]["start_model"] not in (None, made):
            raise ValueError(
                f"{path}: its run began with the start model {rows[0]['start_model']}; here it would be {made}."
            )


def _refuse_unread(study: Study, arguments: Sequence[str]) -> None:
    """Raises ValueError if the recipe's arguments have an option that a study sets itself, or does not read."""
    options = load_recipe(study.recipe).parser._option_string_actions
    for option in (argument.partition("=")[0] for argument in arguments):
        if option in options and options[option].dest in UNREAD:
            hint = "; use the key `iterations`" if options[option].dest == "stop_iters" else ""
            raise ValueError(f"{option}: a study does not take it from the recipe's arguments{hint}.")


@functools.cache
def weights_hash(model: str) -> str:
    """The first twelve digits of the SHA-256 of a model's weights; of a model without a folder, its name."""
    files = sorted(Path(model).glob("*.safetensors"))
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()[:12] if files else model


def arm_config_of(study: Study, arguments: Sequence[str]) -> ARPOConfig:
    """The configuration of the recipe's own run; but it evaluates only when the study asks."""
    recipe = load_recipe(study.recipe)
    recipe.parser.error = _refuse
    args = recipe.parser.parse_args(list(arguments))
    config: ARPOConfig = recipe.make_config(recipe.make_model(args), args)
    use_arguments(config, args, torch.cuda.device_count())
    return config.evaluation(evaluation_interval=None)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _train(algorithm: Any, totals: dict[str, Any]) -> dict[str, Any]:
    """Trains one iteration: adds to the totals, and returns the figures of this iteration."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    result = algorithm.train()
    totals["seconds"] += time.perf_counter() - begin
    # The CPU seconds of engines and learners in other processes are not known here.
    alone = not algorithm.config.num_env_runners and not algorithm.config.num_learners
    totals["cpu_seconds"] = totals["cpu_seconds"] + time.process_time() - cpu_begin if alone else None
    rollout = result["env_runners"]
    learner = result.get("learners", {}).get("default_policy", {})
    totals["tool_calls"] += int(rollout["tool_calls_executed"])
    totals["generated_tokens"] += int(rollout["generated_tokens"])
    totals["computed_tokens"] += int(learner.get("tokens_computed", 0))
    return {
        **{name: find(rollout, path) for name, path in ROLLOUT_METRICS.items()},
        **{name: find(learner, path) for name, path in LEARNER_METRICS.items()},
    }


def find(result: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """The number at `path`; None if there is none, as for NaN, or if it is infinite, which JSON cannot hold."""
    value = number_at(result, *path)
    return None if value is None or math.isinf(value) else value


def provenance(study: Study, arm: Arm, arguments: Sequence[str]) -> dict[str, Any]:
    """How and where a row was made; `tree` has git's hashes of the package and of the environments."""
    here = machine()
    return {
        "arguments": shlex.join(arguments),
        "settings_hash": study.settings_hash(arm),
        "fork_rate_of": arm.fork_rate_of,
        "package_version": package_version(),
        "commit": commit() or "none",
        "tree": (git_says(REPOSITORY, "rev-parse", "HEAD:rllib_arpo", "HEAD:envs") or "none").replace("\n", " "),
        "machine": f"{here['cpu']}, {here['cores']} cores",
    }


def package_version() -> str:
    return versions().get("rllib-arpo", "not installed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, nargs="?", help="a file of release/evidence/studies, or one of your own")
    parser.add_argument("--output", type=Path, help="the folder of the runs")
    parser.add_argument("--arms", nargs="+", help="the arms to run or show; default: all")
    parser.add_argument("--baseline", metavar="ARM", help="compare with this arm; default: the study's baseline")
    parser.add_argument("--seeds", nargs="+", type=int, help="the seeds to run or show; default: all of the study")
    parser.add_argument(
        "--table", type=Path, metavar="ROWS", help="print the tables of this .parquet file, or folder, and run nothing"
    )
    parser.add_argument("--here", action="store_true", help="run one job in this process")
    args = parser.parse_args()
    if args.table is None and (args.study is None or args.output is None):
        parser.error("give a study and --output, or --table.")
    # Ends the runs together with the study.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        rows: list[Row] = []
        if args.table is not None:
            rows = read_output(args.table) if args.table.is_dir() else read_table(args.table)
        study = read_study(args.study or study_of(rows[0]["study"] or "" if rows else ""))
        study.arms_named([*(args.arms or ()), *([args.baseline] if args.baseline else ())])
        study.check_seeds(args.seeds, study.arms_named(args.arms))
        if rows and not _planned(study, rows):
            raise ValueError(f"{args.table}: {study.path} plans none of its runs.")
        if args.here:
            [job] = jobs_of(study, args.arms, args.seeds, args.output)
        elif args.table is None:
            return int(run_study(study, args) > 0)
        else:
            show(study, rows, args)
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 128 + signal.SIGINT
    if args.here:
        run_one(study, job.arm, job.seed, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
