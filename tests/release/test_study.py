"""A study: its file, which runs are started and which are not, what is collected, what is refused."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import rllib_arpo
from release.evidence import study as command
from release.evidence.study_file import FOLDER, read_study
from release.evidence.study_rows import (
    COLUMNS,
    append_row,
    fork_rate,
    read_output,
    read_run,
    read_table,
    run_path,
    unpack,
)
from release.evidence.study_run import package_version
from release.evidence.study_schedule import Job, Schedule, jobs_of, make_model, process_of, progress_line
from tests.release.study_rows import TEXT, make_row, write_run, write_study


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("baseline: grpo\n", "", "{path}: the key 'baseline' is missing."),
        ("baseline: grpo\n", "baseline: ppo\n", "{path}: the baseline 'ppo' is not an arm."),
        ("seeds: [0, 1]\n", "seeds: [0, 1]\nseed: 3\n", "{path}: the key 'seed' is unknown."),
        (
            "iterations: 4",
            "iterations: 5",
            "{path}, arm grpo: iterations=5 cannot be divided by evaluate_every=2.",
        ),
        (
            "fork_rate_of: threshold",
            "fork_rate_of: none",
            "{path}, arm random: fork_rate_of='none' is not an arm with a fork rule of its own.",
        ),
        (
            "fork_rate_of: threshold",
            "fork_rate_of: threshold, seeds: [0, 5]",
            "{path}, arm random: threshold is not run with seed 5, so that there is no fork rate.",
        ),
    ],
)
def test_what_does_not_fit_in_a_file_is_refused(tmp_path, old, new, message):
    with pytest.raises(ValueError) as raised:
        write_study(tmp_path, TEXT.replace(old, new))
    assert str(raised.value) == message.format(path=tmp_path / "tiny_study.yaml")


def test_the_hash_follows_the_settings_of_the_arm_alone(tmp_path):
    usual = write_study(tmp_path)
    hashes = {name: usual.settings_hash(arm) for name, arm in usual.arms.items()}
    assert len(set(hashes.values())) == 3
    changed = write_study(tmp_path, TEXT.replace('threshold: ""', "threshold: --entropy-baseline running"))
    differ = [name for name, arm in changed.arms.items() if changed.settings_hash(arm) != hashes[name]]
    assert differ == ["threshold", "random"]
    reworded = write_study(tmp_path, TEXT.replace("[0, 1]", "[0, 1, 2]").replace("to_reach: [0.5]", "to_reach: [0.9]"))
    assert {name: reworded.settings_hash(arm) for name, arm in reworded.arms.items()} == hashes


def test_the_hash_follows_the_recipes_code_and_not_its_words(tmp_path, monkeypatch):
    recipe = tmp_path / "own_recipe.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    study = write_study(tmp_path, TEXT.replace("tests.release.tiny_recipe", "own_recipe"))

    def settings_hash(text: str) -> str:
        recipe.write_text(text)
        importlib.invalidate_caches()
        return study.settings_hash(study.arms["grpo"])

    usual = settings_hash('"""A recipe."""\nSIZE = 8\n')
    assert settings_hash('"""Another recipe."""\n# As many as fit.\nSIZE = 8\n') == usual
    assert settings_hash('"""A recipe."""\nSIZE = 9\n') != usual


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_arguments_of_every_arm_are_known_to_the_recipe(path, model_folder):
    rllib_arpo.register()  # A Ray that has ended took the names of the algorithms with it.
    study = read_study(path)
    recipe = importlib.import_module(study.recipe)
    for arm in study.arms.values():
        rate = None if arm.fork_rate_of is None else 0.3
        args = recipe.parser.parse_args([*study.all_arguments(arm, rate), "--seed", "0"])
        recipe.make_config(model_folder, args).validate()


class Process:
    """A run that has ended when it is asked for the second time."""

    def __init__(self, write, code: int):
        self.returncode, self._write, self._asked = code, write, 0

    def poll(self):
        self._asked += 1
        if self._asked < 2:
            return None
        if self.returncode == 0:
            self._write()
        return self.returncode


@pytest.fixture
def schedule(tmp_path, monkeypatch):
    """(schedule, what was started, runs that are to fail); all others have a fork rate of 0.25."""
    monkeypatch.setattr("release.evidence.study_schedule.POLL_S", 0.0)
    study, started = write_study(tmp_path), []
    failing: set[tuple[str, int]] = set()

    def start(job: Job, rate: float | None) -> Process:
        started.append((job.arm.name, job.seed, rate))
        run_path(tmp_path, job.arm.name, job.seed).unlink(missing_ok=True)
        arguments = " ".join(study.all_arguments(job.arm, rate))
        return Process(
            lambda: write_run(tmp_path, study, job.arm.name, job.seed, *range(5), fork_rate=0.25, arguments=arguments),
            (job.arm.name, job.seed) in failing,
        )

    return Schedule(study, tmp_path, start), started, failing


def all_jobs(schedule: Schedule) -> list[Job]:
    return jobs_of(schedule.study.arms.values(), None)


def test_runs_that_are_there_are_not_repeated(schedule, tmp_path):
    plan, started, _ = schedule
    write_run(tmp_path, plan.study, "grpo", 0, *range(5))
    cut_off = write_run(tmp_path, plan.study, "grpo", 1, 0, 2)
    cut_off.write_text(cut_off.read_text() + '{"study": "s", "arm"')
    assert [row["iteration"] for row in read_run(cut_off)] == [0, 2]
    assert plan.run(all_jobs(plan), at_a_time=1) == []
    assert started == [
        ("threshold", 0, None), ("random", 0, 0.25), ("grpo", 1, None), ("threshold", 1, None), ("random", 1, 0.25),
    ]  # fmt: skip
    started.clear()
    plan.run(all_jobs(plan), at_a_time=2)
    assert started == []


def test_seeds_that_are_asked_for_are_those_of_every_arm(tmp_path):
    arms = write_study(tmp_path).arms
    jobs = jobs_of([arms["grpo"], arms["threshold"]], [7, 3])
    assert [str(job) for job in jobs] == ["grpo, seed 3", "threshold, seed 3", "grpo, seed 7", "threshold, seed 7"]


def test_the_model_is_made_once_before_the_first_run(schedule):
    plan, started, _ = schedule
    made = []
    plan.prepare = lambda job: made.append((str(job), len(started)))
    plan.run(all_jobs(plan), at_a_time=2)
    assert made == [("grpo, seed 0", 0)]
    plan.run(all_jobs(plan), at_a_time=2)
    assert len(made) == 1


def test_two_calls_do_not_write_into_one_folder(tmp_path):
    study = write_study(tmp_path)
    first = process_of(study, tmp_path, 1)
    with pytest.raises(ValueError, match="runs of an earlier call still write into it; wait for them, or end them"):
        process_of(study, tmp_path, 1)
    del first
    process_of(study, tmp_path, 1)


def test_a_model_that_is_not_made_ends_the_study(tmp_path):
    """The recipe wants TINY_MODEL, which is not there."""
    study = write_study(tmp_path)
    with pytest.raises(ValueError) as raised:
        make_model(study, tmp_path)(jobs_of(study.arms.values(), None)[0])
    assert str(raised.value) == f"The model of grpo, seed 0 was not made, see {tmp_path / 'model.log'}."
    assert "KeyError: 'TINY_MODEL'" in (tmp_path / "model.log").read_text()


def test_random_forks_wait_for_the_fork_rate_of_their_seed(schedule):
    plan, started, _ = schedule
    plan.run(all_jobs(plan), at_a_time=4)
    first = [(arm, seed) for arm, seed, _ in started[:4]]
    assert first == [("grpo", 0), ("threshold", 0), ("grpo", 1), ("threshold", 1)]


def test_a_failed_run_fails_those_that_need_its_fork_rate(schedule, capsys, tmp_path):
    plan, started, failing = schedule
    failing.add(("threshold", 1))
    failed = plan.run(all_jobs(plan), at_a_time=2)
    assert [str(job) for job in failed] == ["threshold, seed 1", "random, seed 1"]
    assert ("random", 0, 0.25) in started and ("random", 1, 0.25) not in started
    shown = capsys.readouterr().out
    assert f"threshold, seed 1: failed, see {tmp_path / 'threshold-1.log'}\n" in shown
    assert "random, seed 1: needs the fork rate of threshold, seed 1, of which there is no finished run\n" in shown


@pytest.mark.parametrize(
    ("column", "old"), [("settings_hash", "abc"), ("package_version", "0.0.1"), ("arguments", "--lr 1.0")]
)
def test_rows_of_other_settings_are_refused_before_anything_runs(schedule, tmp_path, column, old):
    plan, started, _ = schedule
    path = write_run(tmp_path, plan.study, "grpo", 1, *range(5))
    new = read_run(path)[0][column]
    path.unlink()
    write_run(tmp_path, plan.study, "grpo", 1, *range(5), **{column: old})
    with pytest.raises(ValueError) as raised:
        plan.run(all_jobs(plan), at_a_time=1)
    assert str(raised.value) == f"{path}: is of a run with {column}={old!r} and not {new!r}; take another --output."
    assert started == []


def test_random_forks_at_another_rate_are_refused(schedule, tmp_path):
    plan, _, _ = schedule
    plan.run(all_jobs(plan), at_a_time=1)
    run_path(tmp_path, "threshold", 0).unlink()
    write_run(tmp_path, plan.study, "threshold", 0, *range(5), fork_rate=0.5)
    with pytest.raises(ValueError, match=r"fork-probability 0\.2500' and not .*fork-probability 0\.5000'"):
        plan.run(all_jobs(plan), at_a_time=1)


def test_the_fork_rate_is_the_mean_over_iterations_that_decided():
    rows = [make_row("threshold", 0, i, 0, None, fork_rate=rate) for i, rate in enumerate((None, 0.25, 0.75))]
    assert fork_rate(rows) == 0.5
    with pytest.raises(ValueError, match="never decided whether to fork"):
        fork_rate(rows[:1])


def test_a_row_has_all_columns_and_no_other(tmp_path):
    path = tmp_path / "a-0.jsonl"
    append_row(path, {"arm": "a", "seed": 0, "iteration": 1, "delta": -0.5})
    (row,) = read_run(path)
    assert row == dict.fromkeys(COLUMNS) | {"arm": "a", "seed": 0, "iteration": 1, "delta": -0.5}
    with pytest.raises(ValueError, match="the column 'rate' is unknown"):
        append_row(path, {"rate": 1.0})


def test_the_line_of_progress(tmp_path):
    arm = write_study(tmp_path).arms["grpo"]
    first, second = Job(arm, 0), Job(arm, 1)
    line = progress_line({first: 4, second: 1}, [second], seconds=300.0)
    assert line == "1 of 2 runs, 62 % of 8 updates, about 3 min left: grpo, seed 1 (1 of 4)"
    assert (
        progress_line({first: 0}, [first], 3.0)
        == "0 of 1 runs, 0 % of 4 updates, time left unknown: grpo, seed 0 (0 of 4)"
    )


def test_collected_rows_are_those_of_finished_runs(tmp_path):
    study = write_study(tmp_path)
    write_run(tmp_path, study, "grpo", 0, *range(5), fork_rate=0.25)
    write_run(tmp_path, study, "grpo", 1, 0, 2)
    table = tmp_path / "rows.parquet"
    done = command.collect(tmp_path, table)
    assert done == f"{table}: 1 runs; left out, not finished: grpo, seed 1."
    assert read_table(table) == [row for row in read_output(tmp_path) if row["seed"] == 0]


def test_finished_runs_are_taken_from_collected_rows(schedule, tmp_path):
    """Those with the settings and the version of now; what the folder has is kept."""
    plan, _, _ = schedule
    plan.run(all_jobs(plan), at_a_time=2)
    table, new = tmp_path / "rows.parquet", tmp_path / "new"
    command.collect(tmp_path, table)
    new.mkdir()
    own = write_run(new, plan.study, "grpo", 0, *range(5), fork_rate=0.125).read_text()
    settings = {name: plan.study.settings_hash(arm) for name, arm in plan.study.arms.items()}
    write_run(new, plan.study, "grpo", 1, 0, 1)
    assert unpack(table, new, settings | {"threshold": "abc"}, package_version()) == 1
    assert run_path(new, "grpo", 0).read_text() == own
    assert read_run(run_path(new, "grpo", 1)) == read_run(run_path(tmp_path, "grpo", 1))
    # Their fork rates would be of other runs.
    assert not run_path(new, "random", 0).exists()
    assert unpack(table, new, settings, "0.0.1") == 0
    assert unpack(table, new, settings, package_version()) == 4


def test_the_command_says_in_a_sentence_what_it_cannot_do(tmp_path, monkeypatch, capsys):
    study = write_study(tmp_path)
    monkeypatch.setattr(sys, "argv", ["study", str(study.path), "--output", str(tmp_path), "--arms", "ppo"])
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    assert command.main() == 1
    expected = f"error: {study.path}: has no arm 'ppo'; there are grpo, threshold, random.\n"
    assert capsys.readouterr().err == expected


def test_the_table_of_rows_alone(tmp_path):
    """In a process of its own, as docs/evidence.md has it."""
    rows = FOLDER.parent / "results" / "trails-small.parquet"
    line = [sys.executable, "-m", "release.evidence.study", "--table", str(rows), "--output", str(tmp_path)]
    done = subprocess.run(line, cwd=FOLDER.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "### Executed tool calls to an accuracy of 0.8\n" in done.stdout
    assert done.stdout == (tmp_path / "tables.md").read_text() + "\n"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
