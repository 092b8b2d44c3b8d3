"""A study: its file, which runs are started and which are not, what is refused."""

import importlib
import itertools
import re
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import release.evidence.study
import rllib_arpo
from release.evidence.study import (
    arguments_of,
    arm_config_of,
    find,
    jobs_of,
    main,
    prepare,
    process_of,
    run_missing,
    run_one,
    show,
    weights_hash,
)
from release.evidence.study_file import FOLDER, read_study
from release.evidence.study_rows import COLUMNS, append_row, read_output, read_run, read_table, run_path, write_table
from release.evidence.study_table import all_tables
from rllib_arpo.arpo import ARPO
from tests.release import tiny_recipe
from tests.release.study_rows import STARTS, TEXT, make_row, write_run, write_study


@pytest.mark.parametrize(("old", "new", "message"), [
    ("baseline: grpo\n", "", ": baseline: Field required"),
    ("baseline: grpo\n", "baseline: ppo\n", ": the baseline 'ppo' is not an arm."),
    ("seeds: [0, 1]\n", "seeds: [0, 1]\nseed: 3\n", ": seed: Extra inputs are not permitted"),
    ("seeds: [0, 1]\n", "seeds: [4294967296]\n", ": seeds: 0: Input should be less than 4294967296"),
    ("seeds: [0, 1]\n", "seeds: [0, 1, 0]\n", ": seeds: the seed 0 appears twice."),
    ("calls: 20\n", "calls: 2024-13-45\n", ": is not YAML (month must be in 1..12)."),
    ("arguments: --lr 1e-3\n", "arguments:\n", ": arguments: Input should be a valid list"),
    ('threshold: ""', "threshold: --lr '1", ": arms: threshold: arguments: No closing quotation"),
    ('threshold: ""', 'a/b: ""', ": arms: a/b: name: String should match pattern '^\\w[\\w.-]*$'"),
    ('threshold: ""', 'grpo: ""',
     ": is not YAML (the key 'grpo' appears twice in \"<unicode string>\", line 13, column 3: grpo: \"\" ^)."),
    ('threshold: ""\n', "threshold:\n", ": arms: threshold: Input should be a valid dictionary or instance of Arm"),
    ('threshold: ""\n', "threshold: {arguments: '', name: grpo}\n",
     ": arm threshold: its name is its key, so it takes no `name`."),
    ("evaluate_every: 2\n", "evaluate_every: 3\n",
     ": arm grpo: iterations=4 is not a multiple of evaluate_every=3."),
    ("fork_rate_of: threshold", "fork_rate_of: none",
     ": arm random: fork_rate_of='none' is not an arm with its own fork rule."),
    ("fork_rate_of: threshold", "fork_rate_of: threshold, seeds: [0, 5]",
     ": arm random: fork_rate_of='threshold' has no run with seed 5."),
    ("seeds: [0, 1]\n", STARTS.replace("[2]", "[1]"), ": start_models: two of them have the seed 1."),
    ("seeds: [0, 1]\n", f"seeds: [0, 3]\n{STARTS}", ": arm grpo: none of the start_models has its seed 3."),
    ("seeds: [0, 1]\n", STARTS.replace("seeds: [2], ", ""), ": start_models: 1: seeds: Field required"),
    ("seeds: [0, 1]\n", "start_models: [{seeds: 5}]\n", ": start_models: 0: seeds: Input should be a valid list"),
    ("seeds: [0, 1]\n", "start_models: []\n", ": seeds: Field required"),
    ("seeds: [0, 1]\n", STARTS.replace("77a4b2", ""),
     ": start_models: 1: sha256: String should match pattern '^[0-9a-f]{12}$'"),
])  # fmt: skip
def test_what_does_not_fit_in_a_file_is_refused(tmp_path, old, new, message):
    with pytest.raises(ValueError) as raised:
        write_study(tmp_path, TEXT.replace(old, new))
    assert str(raised.value) == f"{tmp_path / 'tiny_study.yaml'}{message}"


def test_the_hash_follows_the_settings_of_the_arm_alone(tmp_path):
    usual = write_study(tmp_path)
    hashes = {name: usual.settings_hash(arm) for name, arm in usual.arms.items()}
    assert len(set(hashes.values())) == 3
    changed = write_study(tmp_path, TEXT.replace('threshold: ""', "threshold: --entropy-baseline running"))
    differ = [name for name, arm in changed.arms.items() if changed.settings_hash(arm) != hashes[name]]
    assert differ == ["threshold", "random"]
    reworded = write_study(tmp_path, TEXT.replace("[0, 1]", "[0, 1, 2]").replace("to_reach: [0.5]", "to_reach: [0.9]"))
    assert {name: reworded.settings_hash(arm) for name, arm in reworded.arms.items()} == hashes


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_arguments_of_every_arm_that_can_be_run_are_known_to_the_recipe(path, model_folder, monkeypatch, tmp_path):
    rllib_arpo.register()  # A Ray that has ended took the names of the algorithms with it.
    study = read_study(path)
    monkeypatch.setattr(importlib.import_module(study.recipe), "make_model", lambda args: model_folder)
    numbers = map(str, itertools.count())  # Start models have different weights.
    monkeypatch.setattr(release.evidence.study, "weights_hash", lambda model: next(numbers))
    can_run = [name for name, arm in study.arms.items() if arm.last_commit is None]
    prepare(jobs_of(study, can_run, None, tmp_path))


def test_an_arm_of_an_earlier_commit_is_shown_and_not_run(tmp_path):
    marked = TEXT.replace('threshold: ""', "threshold: {arguments: --old 1, last_commit: 4ab05be}")
    study = write_study(tmp_path, marked)
    assert [arm.name for arm in study.arms_named(None)] == ["grpo", "threshold", "random"]
    assert [arm.name for arm in study.arms_to_run(["grpo"])] == ["grpo"]
    for names in (None, ["threshold"]):
        with pytest.raises(ValueError) as raised:
            jobs_of(study, names, None, tmp_path)
        assert str(raised.value) == (
            f"{study.path}: threshold cannot run, since options were removed after commit 4ab05be; name other arms."
        )


def test_seeds_are_nested_in_start_models(tmp_path):
    study = write_study(tmp_path, TEXT.replace("seeds: [0, 1]\n", STARTS))
    assert [str(job) for job in jobs_of(study, ["grpo"], None, tmp_path)] == [
        f"grpo, seed {seed}" for seed in (0, 1, 2)
    ]
    told = [arguments_of(study, study.arms["grpo"], seed, tmp_path)[-2:] for seed in (0, 1, 2)]
    assert told == [["--cold-start-seed", "0"], ["--cold-start-seed", "0"], ["--start-model", "b"]]
    with pytest.raises(ValueError, match=r"tiny_study\.yaml: none of the start_models has the seed 7\.$"):
        arguments_of(study, study.arms["grpo"], 7, tmp_path)


def test_only_runs_that_are_planned_are_run(tmp_path):
    study = write_study(tmp_path, TEXT.replace("grpo: --algo GRPO", "grpo: {arguments: --algo GRPO, seeds: [0]}"))
    assert [str(job) for job in jobs_of(study, ["grpo", "threshold"], [1], tmp_path)] == ["threshold, seed 1"]
    with pytest.raises(ValueError, match=r"tiny_study\.yaml: plans no run with seed 9\.$"):
        jobs_of(study, None, [0, 9], tmp_path)
    with pytest.raises(ValueError, match=r"tiny_study\.yaml: plans no run with seed 1\.$"):
        jobs_of(study, ["grpo"], [1], tmp_path)


def test_a_recipe_reads_its_own_options_in_a_study(tmp_path, model_folder, monkeypatch):
    monkeypatch.setenv("TINY_MODEL", model_folder)
    study = write_study(tmp_path)
    config = arm_config_of(study, ["--evaluation-duration", "7", "--num-env-runners", "2"])
    assert (config.evaluation_duration, config.num_env_runners, config.num_gpus_per_learner) == (7, 2, 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = arm_config_of(study, [])
    assert (config.num_gpus_per_learner, config.sleep_level) == (1, 2)


@pytest.mark.parametrize(("line", "message"), [
    ("grpo: --algo GRPO --lr x", "arm grpo: argument --lr: invalid float value: 'x'"),
    ("grpo: --algo GRPO --branch-dept 2", "arm grpo: unrecognized arguments: --branch-dept 2"),
    ("random: {fork_rate_of: grpo, arguments: --branching random}", "arm random: fork_rate_of: grpo never forks."),
    ("random: {fork_rate_of: threshold, arguments: ''}", "arm random: fork_rate_of needs --branching random."),
])  # fmt: skip
def test_what_is_wrong_with_an_arm_is_said_before_anything_runs(tmp_path, model_folder, monkeypatch, line, message):
    monkeypatch.setenv("TINY_MODEL", model_folder)
    arms = {"grpo": "grpo: --algo GRPO", "threshold": 'threshold: ""', line.partition(":")[0]: line}
    study = write_study(tmp_path, TEXT.partition("arms:")[0] + "arms:\n  " + "\n  ".join(arms.values()) + "\n")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        prepare(jobs_of(study, None, None, tmp_path))


def test_start_models_with_the_same_weights_are_refused(tmp_path, model_folder, monkeypatch):
    monkeypatch.setenv("TINY_MODEL", model_folder)
    starts = "start_models: [{arguments: --lr 2e-3, seeds: [0]}, {arguments: --lr 3e-3, seeds: [1]}]\n"
    study = write_study(tmp_path, TEXT.replace("seeds: [0, 1]\n", starts))
    with pytest.raises(ValueError, match=r"^start_models: '--lr 2e-3' and '--lr 3e-3' give the same weights\.$"):
        prepare(jobs_of(study, ["grpo"], None, tmp_path))


@pytest.mark.parametrize("option", ["--stop-iters 3", "--iterations 1", "--seed 5", "--resume"])
def test_an_option_that_a_study_does_not_read_is_refused(tmp_path, model_folder, monkeypatch, option):
    monkeypatch.setenv("TINY_MODEL", model_folder)
    study = write_study(tmp_path, TEXT.replace("--algo GRPO", f"--algo GRPO {option}"))
    hint = {"--stop-iters": "; use the key `iterations`", "--iterations": "; use the key `iterations`"}
    named = option.split()[0]
    told = f"arm grpo: {named}: a study does not take it from the recipe's arguments{hint.get(named, '')}."
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        prepare(jobs_of(study, None, None, tmp_path))


def test_a_study_that_would_evaluate_on_the_questions_of_training_is_refused(tmp_path, model_folder, monkeypatch):
    monkeypatch.setenv("TINY_MODEL", model_folder)
    made = tiny_recipe.make_config

    def without_test_split(model, args):
        config = made(model, args)
        config.evaluation_config = {}
        return config

    monkeypatch.setattr(tiny_recipe, "make_config", without_test_split)
    with pytest.raises(ValueError, match=r"^arm grpo: the evaluation asks training's questions; evaluation_config="):
        prepare(jobs_of(write_study(tmp_path), None, None, tmp_path))


def test_a_start_model_with_other_weights_than_the_rows_have_is_refused_before_anything_runs(
    tmp_path, model_folder, monkeypatch
):
    monkeypatch.setenv("TINY_MODEL", model_folder)
    study, made = write_study(tmp_path), weights_hash(model_folder)
    write_run(tmp_path, study, "grpo", 0, *range(5), start_model=made)
    prepare(jobs_of(study, ["threshold"], None, tmp_path))
    path = write_run(tmp_path, study, "grpo", 1, *range(5), start_model="0" * 12)
    with pytest.raises(ValueError) as raised:
        prepare(jobs_of(study, ["threshold"], None, tmp_path))
    assert str(raised.value) == f"{path}: its run began with the start model {'0' * 12}; here it would be {made}."


def test_only_the_start_models_of_the_named_seeds_are_made(tmp_path, model_folder, monkeypatch):
    asked = []
    monkeypatch.setenv("TINY_MODEL", model_folder)
    monkeypatch.setattr(release.evidence.study, "weights_hash", lambda model: asked.append(model) or str(len(asked)))
    starts = "".join(f"  - {{arguments: --lr {n}e-3, seeds: [{n}]}}\n" for n in (1, 2, 3))
    study = write_study(tmp_path, TEXT.replace("seeds: [0, 1]\n", f"start_models:\n{starts}"))
    prepare(jobs_of(study, None, [3], tmp_path))
    assert len(asked) == 3, "three arms, one start model"
    asked.clear()
    prepare(jobs_of(study, ["grpo"], [1, 3], tmp_path))
    assert len(asked) == 2


def test_a_start_model_with_other_weights_than_the_plan_says_is_refused(tmp_path, model_folder, monkeypatch):
    monkeypatch.setenv("TINY_MODEL", model_folder)
    made = weights_hash(model_folder)
    for stated in (made, "0" * 12):
        start = f"start_models: [{{arguments: --lr 2e-3, seeds: [0], sha256: '{stated}'}}]\n"
        study = write_study(tmp_path, TEXT.replace("seeds: [0, 1]\n", start))
        if stated == made:
            prepare(jobs_of(study, ["grpo"], None, tmp_path))
    with pytest.raises(ValueError, match=f"^start_models: '--lr 2e-3' gives {made}, not {stated}\\.$"):
        prepare(jobs_of(study, ["grpo"], None, tmp_path))
    assert weights_hash("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


class Process:
    """A run that has ended when it is asked for the second time."""

    def __init__(self, write, code: int):
        self.returncode, self._write, self.asked = code, write, 0

    def poll(self):
        self.asked += 1
        if self.asked < 2:
            return None
        if self.returncode == 0:
            self._write()
        return self.returncode


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """(study, what was started, runs that are to fail, how to run it); all others have a fork rate of 0.25."""
    monkeypatch.setattr("release.evidence.study.POLL_S", 0.0)
    study, started, beside = write_study(tmp_path), [], []
    processes: list[Process] = []
    failing: set[tuple[str, int]] = set()

    def start(job) -> Process:
        started.append((job.arm.name, job.seed))
        beside.append(sum(process.asked < 2 for process in processes))
        job.path.unlink(missing_ok=True)
        rate = 0.25 if job.arm.fork_rate_of else None
        arguments = " ".join(study.all_arguments(job.arm, rate))
        process = Process(
            lambda: write_run(tmp_path, study, job.arm.name, job.seed, *range(5), fork_rate=0.25, arguments=arguments),
            (job.arm.name, job.seed) in failing,
        )
        processes.append(process)
        return process

    def run(at_a_time: int = 1) -> list[str]:
        return [str(job) for job in run_missing(jobs_of(study, None, None, tmp_path), at_a_time, start)]

    run.beside = beside
    return study, started, failing, run


def test_runs_that_are_there_are_not_repeated(plan, tmp_path):
    study, started, _, run = plan
    write_run(tmp_path, study, "grpo", 0, *range(5))
    cut_off = write_run(tmp_path, study, "grpo", 1, 0, 2)
    cut_off.write_text(cut_off.read_text() + '{"study": "s", "arm"')
    assert [row["iteration"] for row in read_run(cut_off)] == [0, 2]
    assert run() == []
    assert started == [("threshold", 0), ("random", 0), ("grpo", 1), ("threshold", 1), ("random", 1)]
    started.clear()
    run(2)
    assert started == []


def test_random_forks_wait_for_the_fork_rate_of_their_seed(plan):
    _, started, _, run = plan
    run(4)
    assert run.beside[:4] == [0, 1, 2, 3]
    assert started[:4] == [("grpo", 0), ("threshold", 0), ("grpo", 1), ("threshold", 1)]
    assert sorted(started[4:]) == [("random", 0), ("random", 1)]


def test_a_failed_run_fails_those_that_need_its_fork_rate(plan, capsys, tmp_path):
    _, started, failing, run = plan
    failing.add(("threshold", 1))
    (tmp_path / "threshold-1.log").write_text("WARNING rllib_arpo: late\n" * 2 + "ValueError: no memory\n\n")
    assert run(2) == ["threshold, seed 1", "random, seed 1"]
    assert ("random", 0) in started and ("random", 1) not in started
    shown = capsys.readouterr().out
    assert f"threshold, seed 1: failed (ValueError: no memory), see {tmp_path / 'threshold-1.log'}; " in shown
    assert shown.count("\n  WARNING rllib_arpo: late\n") == 1
    assert "not run, since the run with their fork rate is missing: random, seed 1 (of threshold, seed 1)\n" in shown


def test_rows_of_other_settings_are_refused_before_anything_runs(plan, tmp_path):
    study, started, _, run = plan
    path = write_run(tmp_path, study, "grpo", 1, *range(5), settings_hash="abc")
    with pytest.raises(ValueError) as raised:
        run()
    new = study.settings_hash(study.arms["grpo"])
    assert (
        str(raised.value)
        == f"{path}: its run had settings_hash='abc', not {new!r}; name another --output, or delete this file."
    )
    assert started == []
    settings_hash = study.settings_hash(study.arms["grpo"])
    for old, new, told in (
        ('"study": "tiny-study"', '"study": "s"', "study='s', not 'tiny-study'"),
        ('"last_iteration": 4', '"last_iteration": 8', "last_iteration=8, not 4"),
        ('"arguments": "--lr 1e-3', '"arguments": "--lr 2e-3', "arguments='--lr 2e-3 --algo GRPO', not '--lr 1e-3 --"),
    ):
        path.unlink()
        write_run(tmp_path, study, "grpo", 1, *range(5), settings_hash=settings_hash)
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(ValueError, match=f"grpo-1.jsonl: its run had {told}"):
            run()


@pytest.mark.parametrize(("line", "message"), [
    ("{0}/tiny_study.yaml --output {0}/rows --baseline ppo", "error: {0}/tiny_study.yaml: has no arm 'ppo'; there "),
    ("{0}/none.yaml --output {0}/rows", "error: {0}/none.yaml: there is no such study; name its file before --table."),
    ("{0}/tiny_study.yaml --output {0}/other.parquet", "error: --output {0}/other.parquet: is a file, and must "),
    ("--table {0}/none.parquet", "error: {0}/none.parquet: not a readable parquet file ("),
    ("--table {0}/other.parquet", "error: {0}/other.parquet: has no rows of a study, which need an arm, a "),
    ("{0}/tiny_study.yaml --table {0}/ppo.parquet", "error: {0}/ppo.parquet: {0}/tiny_study.yaml plans none of its "),
    ("{0}/tiny_study.yaml --output {0}/rows --seeds 7", "error: {0}/tiny_study.yaml: plans no run with seed 7.\n"),
    ("{0}/no_recipe.yaml --output {0}/rows", "error: recipe: there is no module 'trian' in the "),
])  # fmt: skip
def test_a_wrong_command_line_runs_nothing(tmp_path, monkeypatch, capsys, line, message):
    write_study(tmp_path)
    (tmp_path / "no_recipe.yaml").write_text(TEXT.replace("tests.release.tiny_recipe", "trian"))
    pq.write_table(pa.table({"arm": ["a"]}), tmp_path / "other.parquet")
    write_table([make_row("ppo", 0, 0, 0, 0.5)], tmp_path / "ppo.parquet")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("release.evidence.study.run_missing", lambda *_: pytest.fail("A run was started."))
    monkeypatch.setattr("sys.argv", ["study", *line.format(tmp_path).split()])
    with pytest.raises(SystemExit):
        sys.exit(main())
    assert message.format(tmp_path) in capsys.readouterr().err


def test_runs_that_were_planned_and_have_no_row_are_named(tmp_path, capsys):
    study = write_study(tmp_path)
    write_table([make_row("grpo", 0, i, 10 * i, 0.5, last_iteration=4) for i in range(5)], tmp_path / "rows.parquet")
    rows = read_table(tmp_path / "rows.parquet")
    chosen = SimpleNamespace(arms=["grpo", "threshold"], seeds=None, baseline=None, output=None)
    show(study, rows, chosen)
    missing = "grpo, seed 1; threshold, seed 0; threshold, seed 1"
    assert capsys.readouterr().out.rstrip().endswith(f"- planned, without a row: {missing}")
    chosen.arms, chosen.seeds = ["grpo"], [0]
    rows += [row | {"seed": 1} for row in rows]
    show(study, rows, chosen)
    shown = capsys.readouterr().out
    assert "without a row" not in shown and "| grpo | 1 | " in shown


def test_random_forks_at_another_rate_are_refused(plan, tmp_path):
    study, _, _, run = plan
    run()
    run_path(tmp_path, "threshold", 0).unlink()
    write_run(tmp_path, study, "threshold", 0, *range(5), fork_rate=0.5)
    with pytest.raises(ValueError, match=r"fork-probability 0\.2500', not .*fork-probability 0\.5000'"):
        run()


def test_two_calls_do_not_write_into_one_folder(tmp_path):
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        process_of(first, 1)
        with pytest.raises(ValueError, match="runs of an earlier call still write into it; wait for them, or end them"):
            process_of(second, 1)


def test_other_files_of_json_lines_are_no_runs_and_a_broken_row_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "2 + 2"}\n')
    (tmp_path / "my-rows.jsonl").write_text('{"question": "2 + 2"}\n')
    append_row(tmp_path / "a-0.jsonl", {"arm": "a", "seed": 0, "iteration": 0})
    assert [row["arm"] for row in read_output(tmp_path)] == ["a"]
    with (tmp_path / "a-0.jsonl").open("a") as file:
        file.write("none\n")
    with pytest.raises(ValueError, match=r"a-0\.jsonl, line 2: is not a row of a study \("):
        read_output(tmp_path)


def test_rows_that_are_not_planned_are_left_out_and_named(tmp_path, capsys):
    study = write_study(tmp_path)
    rows = [make_row("grpo", seed, i, 10 * i, 0.5, last_iteration=4) for seed in (0, 7) for i in range(5)]
    rows += [make_row("old", 0, 0, 0, 0.5)]
    show(study, rows, SimpleNamespace(arms=None, seeds=None, baseline=None, output=tmp_path))
    shown = capsys.readouterr().out
    assert "| grpo | 1 | " in shown and shown.endswith("- not planned, left out: grpo, seed 7; old, seed 0\n\n")
    show(study, rows, SimpleNamespace(arms=["threshold"], seeds=None, baseline=None, output=tmp_path))
    assert (tmp_path / "tables.md").read_text() + "\n" == shown, "the file has all arms"


def test_a_row_has_all_columns(tmp_path):
    path, table = tmp_path / "a-0.jsonl", tmp_path / "rows.parquet"
    append_row(path, {"arm": "a", "seed": 0, "iteration": 1, "delta": -0.5})
    path.write_text(path.read_text().replace(', "start_model": null', ""))  # A column that is newer than the row.
    (row,) = read_run(path)
    assert row == dict.fromkeys(COLUMNS) | {"arm": "a", "seed": 0, "iteration": 1, "delta": -0.5}
    rows = [make_row("a", 0, 0, 5, 0.5, delta=float("nan")), row]
    write_table(rows, table)
    assert read_table(table) == [rows[0] | {"delta": None}, row]


@pytest.mark.slow
def test_a_study_of_a_recipe_in_a_folder_of_its_own(tmp_path, model_folder, monkeypatch):
    """As docs/evaluate.md has it: the current folder has the recipe, the file and the rows."""
    (tmp_path / "my_recipe.py").write_text("from tests.release.tiny_recipe import *\n")
    arms = "arms:\n  grpo: --algo GRPO\n"
    text = (
        TEXT.partition("arms:")[0]
        .replace("tests.release.tiny_recipe", "my_recipe")
        .replace("iterations: 4", "iterations: 2")
    )
    (tmp_path / "my_study.yaml").write_text(text.replace("[0, 1]", "[0]") + arms)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[2]))
    monkeypatch.setenv("TINY_MODEL", model_folder)
    line = [sys.executable, "-m", "release.evidence.study", "my_study.yaml"]
    done = subprocess.run([*line, "--output", "rows"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    table = subprocess.run([*line, "--table", "rows/rows.parquet"], capture_output=True, text=True)
    assert table.stdout in done.stdout
    assert table.stdout == (tmp_path / "rows" / "tables.md").read_text() + "\n"
    assert (tmp_path / "rows" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "\n| grpo | 1 | " in table.stdout


evaluate = ARPO.evaluate
#: What depends on the clock.
CLOCK = {"seconds", "cpu_seconds"}


def without_clock(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in rows]


def test_a_row_made_again_is_the_same(ray_cluster, model_folder, tmp_path, monkeypatch):
    """A killed run's rows are deleted, and the run is begun anew; each iteration is a row."""
    monkeypatch.setenv("TINY_MODEL", model_folder)
    study = write_study(tmp_path, TEXT.replace("iterations: 4", "iterations: 2"))
    evaluated = []
    monkeypatch.setattr(ARPO, "evaluate", lambda own, *_: evaluated.append(own.iteration) or evaluate(own))
    made = []
    for _ in range(2):
        evaluated.clear()
        run_one(study, study.arms["threshold"], 3, tmp_path)
        made.append(read_run(run_path(tmp_path, "threshold", 3)))
        assert evaluated == [0, 2], "not once more in the first update"
    first, second = made
    assert without_clock(first) == without_clock(second)
    assert [row["iteration"] for row in first] == [0, 1, 2]
    assert [row["accuracy"] is None for row in first] == [False, True, False]
    assert {row["study"] for row in first} == {"tiny-study"}
    last = first[-1]
    assert last.keys() == COLUMNS.keys()
    assert (last["arm"], last["seed"], last["last_iteration"], last["arguments"]) == ("threshold", 3, 2, "--lr 1e-3")
    assert last["settings_hash"] == study.settings_hash(study.arms["threshold"])
    assert all(last[name] for name in ("package_version", "commit", "tree", "machine"))
    assert last["start_model"] == weights_hash(model_folder)
    # Totals grow; all that is packed is computed, since nothing is skipped.
    totals = [[row[name] for row in first] for name in ("generated_tokens", "computed_tokens", *CLOCK)]
    assert all(a == 0 < b < c for a, b, c in totals)
    # The task does not say which responses are decisive.
    assert "decisive" not in all_tables(first, "threshold", [0.5], 0)


def test_a_metric_without_a_value_is_null():
    results = [{"a": {"b": 0.5}}, {"a": {"b": float("nan")}}, {"a": 1.0}, {}]
    assert [find(result, ("a", "b")) for result in results] == [0.5, None, None, None]
