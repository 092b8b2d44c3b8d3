"""Which runs of a study are missing, and running them, a few at a time."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from release.evidence.study_file import Arm, Study
from release.evidence.study_rows import fork_rate, is_finished, read_run, run_path
from release.evidence.study_run import REPOSITORY, package_version

POLL_S, PROGRESS_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    arm: Arm
    seed: int

    def __str__(self) -> str:
        return f"{self.arm.name}, seed {self.seed}"


@dataclass(slots=True)
class Schedule:
    """The runs of a study in one folder.

    Attributes:
        start: starts a run's process, given the job and its fork rate.
        prepare: makes the model that runs start from, given the first job: side by side each would make it.
        running, failed: so far.
    """

    study: Study
    output: Path
    start: Callable[[Job, float | None], subprocess.Popen]
    prepare: Callable[[Job], object] = lambda _job: None
    running: dict[Job, subprocess.Popen] = field(default_factory=dict)
    failed: list[Job] = field(default_factory=list)

    def run(self, jobs: Sequence[Job], at_a_time: int) -> list[Job]:
        """Runs those of `jobs` that are missing, in their order; one that needs another's fork rate waits for it.

        Returns:
            the runs that failed, and those that waited for one that failed.

        Raises:
            ValueError: the folder has rows of other settings; nothing was started.
        """
        for job in jobs:
            self._check(job)
        pending = [job for job in jobs if not self._is_finished(job)]
        if pending:
            self.prepare(pending[0])
        progress = Progress(self.output, list(pending))
        try:
            while pending or self.running:
                self._start_some(pending, at_a_time)
                time.sleep(POLL_S)
                self._collect()
                progress.tell(self.running)
        finally:
            for process in self.running.values():
                process.terminate()
        return self.failed

    def _start_some(self, pending: list[Job], at_a_time: int) -> None:
        """Starts runs whose fork rate is known; removes them, and those that never can be, from `pending`."""
        for job in list(pending):
            if len(self.running) >= at_a_time:
                return
            source = self._source(job)
            if source is None or self._is_finished(source):
                pending.remove(job)
                self.running[job] = self.start(job, self._fork_rate(job))
            elif source in self.failed or source not in {*pending, *self.running}:
                pending.remove(job)
                self._fail(job, f"needs the fork rate of {source}, of which there is no finished run")

    def _collect(self) -> None:
        for job, process in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[job]
            if process.returncode == 0:
                print(f"{job}: done", flush=True)
            else:
                self._fail(job, f"failed, see {log_path(self.output, job)}")

    def _fail(self, job: Job, why: str) -> None:
        self.failed.append(job)
        print(f"{job}: {why}", flush=True)

    def _source(self, job: Job) -> Job | None:
        """The run whose fork rate this one has."""
        name = job.arm.fork_rate_of
        return None if name is None else Job(self.study.arms[name], job.seed)

    def _fork_rate(self, job: Job) -> float | None:
        source = self._source(job)
        return None if source is None else fork_rate(self._rows(source))

    def _rows(self, job: Job) -> list[dict]:
        return read_run(run_path(self.output, job.arm.name, job.seed))

    def _is_finished(self, job: Job) -> bool:
        return is_finished(self._rows(job), job.arm.iterations)

    def _check(self, job: Job) -> None:
        """Refuses rows of other settings, of another version, or of another fork rate than the other arm has now."""
        rows = self._rows(job)
        if not rows:
            return
        wanted = {"settings_hash": self.study.settings_hash(job.arm), "package_version": package_version()}
        source = self._source(job)
        if source is None or self._is_finished(source):
            wanted["arguments"] = shlex.join(self.study.all_arguments(job.arm, self._fork_rate(job)))
        for column, value in wanted.items():
            if rows[0][column] != value:
                raise ValueError(
                    f"{run_path(self.output, job.arm.name, job.seed)}: is of a run with {column}="
                    f"{rows[0][column]!r} and not {value!r}; take another --output."
                )


def jobs_of(arms: Iterable[Arm], seeds: Sequence[int] | None) -> list[Job]:
    """All runs, seed by seed, so that what there is after a while can be paired; None: each arm's own seeds."""
    jobs = [Job(arm, seed) for arm in arms for seed in (arm.seeds if seeds is None else seeds)]
    return sorted(jobs, key=lambda job: job.seed)


@dataclass(slots=True)
class Progress:
    """Says now and then how far the runs are, and how long the rest takes at the rate so far."""

    output: Path
    jobs: list[Job]
    begin: float = field(default_factory=time.monotonic)
    told: float = float("-inf")

    def tell(self, running: Iterable[Job]) -> None:
        now = time.monotonic()
        if now - self.told < PROGRESS_S:
            return
        self.told = now
        # What a killed run has left is not of this time; it is begun again.
        places = {job: _iteration(self.output, job, self.begin) for job in self.jobs}
        print(progress_line(places, list(running), now - self.begin), flush=True)


def progress_line(places: dict[Job, int], running: Sequence[Job], seconds: float) -> str:
    """E.g. "3 of 8 runs, 40 % of 192 updates, about 25 min left: grpo, seed 1 (12 of 24)".

    Args:
        places: the last iteration of each run that was missing.
        seconds: since they were begun.
    """
    finished = sum(places[job] >= job.arm.iterations for job in places)
    total, done = sum(job.arm.iterations for job in places), sum(places.values())
    left = f"about {seconds / done * (total - done) / 60:.0f} min left" if done else "time left unknown"
    now = "; ".join(f"{job} ({places[job]} of {job.arm.iterations})" for job in running)
    return f"{finished} of {len(places)} runs, {100 * done / max(total, 1):.0f} % of {total} updates, {left}: {now}"


def _iteration(output: Path, job: Job, begin: float) -> int:
    """The last iteration of a run that was written since `begin` (of the monotonic clock); 0 if there is none."""
    path = run_path(output, job.arm.name, job.seed)
    if not path.is_file() or path.stat().st_mtime < time.time() - (time.monotonic() - begin):
        return 0
    rows = read_run(path)
    return rows[-1]["iteration"] if rows else 0


def log_path(output: Path, job: Job) -> Path:
    return output / f"{job.arm.name}-{job.seed}.log"


def process_of(study: Study, output: Path, at_a_time: int) -> Callable[[Job, float | None], subprocess.Popen]:
    """Starts a run as a process of its own, whose output is the run's log; such processes share the cores.

    Raises:
        ValueError: runs of another call of the study, which may have been killed itself, write into the folder.
    """
    lock = (output / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"{output}: runs of an earlier call still write into it; wait for them, or end them."
        ) from None
    threads = max(1, len(os.sched_getaffinity(0)) // at_a_time)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}

    def start(job: Job, rate: float | None) -> subprocess.Popen:
        command = [*_command(study, job), "--seed", str(job.seed), "--output", str(output.resolve())]
        command += [] if rate is None else ["--fork-rate", str(rate)]
        with log_path(output, job).open("w") as log:
            # Each run holds the lock until it ends.
            return subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[lock.fileno()],
            )

    return start


def make_model(study: Study, output: Path) -> Callable[[Job], object]:
    """Makes the model that a job starts from, in a process of its own.

    Raises (the function that is returned):
        ValueError: the process failed.
    """

    def make(job: Job) -> None:
        path = output / "model.log"
        with path.open("w") as log:
            if subprocess.run(_command(study, job), cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT).returncode:
                raise ValueError(f"The model of {job} was not made, see {path}.")

    return make


def _command(study: Study, job: Job) -> list[str]:
    return [sys.executable, "-m", "release.evidence.study_run", str(study.path.resolve()), "--arm", job.arm.name]
