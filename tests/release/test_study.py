"""A study: its file, which runs are started and which are not, what is refused."""

import importlib
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rllib_arpo
from release.evidence.study import jobs_of, main, process_of, run_missing
from release.evidence.study_file import FOLDER, read_study
from release.evidence.study_rows import COLUMNS, append_row, read_run, read_table, run_path, write_table
from tests.release.study_rows import TEXT, make_row, write_run, write_study


@pytest.mark.parametrize(("old", "new", "message"), [
    ("baseline: grpo\n", "", "{path}: the key 'baseline' is missing."),
    ("baseline: grpo\n", "baseline: ppo\n", "{path}: the baseline 'ppo' is not an arm."),
    ("seeds: [0, 1]\n", "seeds: [0, 1]\nseed: 3\n", "{path}: the key 'seed' is unknown."),
    ("evaluate_every: 2\n", "evaluate_every: 0\n",
     "{path}: evaluate_every=0: must be an integer >= 1."),
    ("calls: 20\n", "calls: 9,000\n", "{path}: calls='9,000': must be an integer >= 1."),
    ("seeds: [0, 1]\n", "seeds: 3\n",
     "{path}: seeds=3: must be a list of integers from 0 to 2**32 - 1, not empty."),
    ('threshold: ""', 'threshold: {arguments: "", seeds: []}',
     "{path}, arm threshold: seeds=[]: must be a list of integers from 0 to 2**32 - 1, not empty."),
    ("seeds: [0, 1]\n", "seeds: [4294967296]\n",
     "{path}: seeds=[4294967296]: must be a list of integers from 0 to 2**32 - 1, not empty."),
    ("fork_rate_of: threshold", "fork_rate_of: threshold, seeds: [0, 5]",
     "{path}, arm random: fork_rate_of='threshold' has no run with seed 5."),
    ("calls: 20\n", "calls: 2024-13-45\n", "{path}: not YAML (month must be in 1..12)."),
    ("arguments: --lr 1e-3\n", "arguments:\n",
     "{path}: arguments=None: must be a text of arguments, with an end of each quotation."),
    ('threshold: ""', """threshold: --lr '1""",
     """{path}, arm threshold: arguments="--lr '1": must be a text of arguments, with an end of each quotation."""),
    ("threshold: \"\"", "a/b: \"\"", "{path}, arm 'a/b': the name may have {allowed}."),
    ("threshold: \"\"", "-a: \"\"", "{path}, arm '-a': the name may have {allowed}."),
    ('threshold: ""', 'grpo: ""', "{path}: not YAML (line 13: the key 'grpo' is there twice)."),
    ('threshold: ""\n', "threshold:\n", "{path}, arm threshold=None: must be a dict."),
    ("fork_rate_of: threshold", "iterations: x", "{path}, arm random: iterations='x': must be an integer >= 1."),
    ("jobs: 2\n", "jobs:\t[2]\n\t3\n", "{path}: not YAML (line 7: found character '\\t' that cannot start any token)."),
    ("[0.5]", "[50]", "{path}: accuracies_to_reach=[50]: must be a list of numbers in [0, 1]."),
    ("fork_rate_of: threshold", "fork_rate_of: none",
     "{path}, arm random: fork_rate_of='none' is not an arm with a fork rule of its own."),
])  # fmt: skip
def test_what_does_not_fit_in_a_file_is_refused(tmp_path, old, new, message):
    with pytest.raises(ValueError) as raised:
        write_study(tmp_path, TEXT.replace(old, new))
    allowed = "letters, digits, '_', and after the first also '-' and '.'"
    assert str(raised.value) == message.format(path=tmp_path / "tiny_study.yaml", allowed=allowed)


def test_a_file_a_table_or_a_recipe_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml: there is no such study; name its file before --table\.$"):
        read_study(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match=r"none\.parquet: not a readable parquet file \("):
        read_table(tmp_path / "none.parquet")
    (tmp_path / "latin.yaml").write_bytes(b"recipe: caf\xe9\n")
    with pytest.raises(ValueError, match=r"latin\.yaml: not YAML \('utf-8' codec can't decode"):
        read_study(tmp_path / "latin.yaml")
    for recipe in ("nothing", "nothing.below", ".relative", "sys", "math"):
        study = write_study(tmp_path, TEXT.replace("tests.release.tiny_recipe", recipe))
        with pytest.raises(ValueError, match=f"recipe: there is no module '{recipe}'; the current folder and"):
            study.settings_hash(study.arms["grpo"])


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
def test_the_arguments_of_every_arm_that_can_be_run_are_known_to_the_recipe(path, model_folder):
    rllib_arpo.register()  # A Ray that has ended took the names of the algorithms with it.
    study = read_study(path)
    recipe = importlib.import_module(study.recipe)
    for arm in study.arms_to_run([name for name, arm in study.arms.items() if arm.last_commit is None]):
        rate = None if arm.fork_rate_of is None else 0.3
        args = recipe.parser.parse_args([*study.all_arguments(arm, rate), "--seed", "0"])
        recipe.make_config(model_folder, args).validate()


def test_an_arm_of_an_earlier_commit_is_shown_and_not_run(tmp_path):
    marked = TEXT.replace('threshold: ""', "threshold: {arguments: --old 1, last_commit: 4ab05be}")
    study = write_study(tmp_path, marked)
    assert [arm.name for arm in study.arms_named(None)] == ["grpo", "threshold", "random"]
    assert [arm.name for arm in study.arms_to_run(["grpo"])] == ["grpo"]
    for names in (None, ["threshold"]):
        with pytest.raises(ValueError) as raised:
            jobs_of(study, names, None, tmp_path)
        assert str(raised.value) == (
            f"{study.path}: 4ab05be is the last commit that runs threshold: options were removed; name other arms."
        )


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
def plan(tmp_path, monkeypatch):
    """(study, what was started, runs that are to fail, how to run it); all others have a fork rate of 0.25."""
    monkeypatch.setattr("release.evidence.study.POLL_S", 0.0)
    study, started = write_study(tmp_path), []
    failing: set[tuple[str, int]] = set()

    def start(job) -> Process:
        started.append((job.arm.name, job.seed))
        job.path.unlink(missing_ok=True)
        rate = 0.25 if job.arm.fork_rate_of else None
        arguments = " ".join(study.all_arguments(job.arm, rate))
        return Process(
            lambda: write_run(tmp_path, study, job.arm.name, job.seed, *range(5), fork_rate=0.25, arguments=arguments),
            (job.arm.name, job.seed) in failing,
        )

    def run(at_a_time: int = 1) -> list[str]:
        return [str(job) for job in run_missing(jobs_of(study, None, None, tmp_path), at_a_time, start)]

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


def test_the_first_run_is_alone_and_random_forks_wait_for_the_fork_rate_of_their_seed(plan):
    _, started, _, run = plan
    run(4)
    assert started[:4] == [("grpo", 0), ("threshold", 0), ("grpo", 1), ("threshold", 1)]
    assert sorted(started[4:]) == [("random", 0), ("random", 1)]


def test_a_failed_run_fails_those_that_need_its_fork_rate(plan, capsys, tmp_path):
    _, started, failing, run = plan
    failing.add(("threshold", 1))
    assert run(2) == ["threshold, seed 1", "random, seed 1"]
    assert ("random", 0) in started and ("random", 1) not in started
    shown = capsys.readouterr().out
    assert f"threshold, seed 1: failed, see {tmp_path / 'threshold-1.log'}; " in shown
    assert "not run, since the run whose fork rate they have is missing: random, seed 1\n" in shown


def test_rows_of_other_settings_are_refused_before_anything_runs(plan, tmp_path):
    study, started, _, run = plan
    path = write_run(tmp_path, study, "grpo", 1, *range(5), settings_hash="abc")
    with pytest.raises(ValueError) as raised:
        run()
    new = study.settings_hash(study.arms["grpo"])
    assert str(raised.value) == f"{path}: is of a run with settings_hash='abc' and not {new!r}; take another --output."
    assert started == []


def test_the_run_whose_fork_rate_another_has_is_of_the_same_settings(plan, tmp_path):
    study, _, _, _ = plan
    path = write_run(tmp_path, study, "threshold", 0, *range(5), settings_hash="abc", fork_rate=0.25)
    with pytest.raises(ValueError, match=f"^{path}: is of a run with settings_hash='abc' and not "):
        run_missing(jobs_of(study, ["random"], [0], tmp_path), 1, None)


@pytest.mark.parametrize(("line", "message"), [
    ("{0}/tiny_study.yaml --output {0}/rows --baseline ppo", "error: {0}/tiny_study.yaml: has no arm 'ppo'; there "),
    ("{0}/tiny_study.yaml --output {0}/rows --jobs -1", "argument --jobs: '-1' is not an integer >= 1\n"),
    ("{0}/tiny_study.yaml --output {0}/rows --seeds -1",
     "error: seeds=[-1]: must be a list of integers from 0 to 2**32 - 1, not empty.\n"),
    ("{0}/tiny_study.yaml --output {0}/other.parquet", "error: [Errno 17] File exists: '{0}/other.parquet'\n"),
    ("--table {0}/other.parquet", "error: {0}/other.parquet: has no rows of a study, each of an arm, a seed and an "),
    ("--table {0}/other.parquet --seeds 0", "argument --seeds: does nothing with --table\n"),
    ("{0}/tiny_study.yaml --table {0}/ppo.parquet", "error: {0}/tiny_study.yaml: has no arm 'ppo'; there are grpo, "),
])  # fmt: skip
def test_a_wrong_command_line_runs_nothing(tmp_path, monkeypatch, capsys, line, message):
    write_study(tmp_path)
    pq.write_table(pa.table({"arm": ["a"]}), tmp_path / "other.parquet")
    write_table([make_row("ppo", 0, 0, 0, 0.5)], tmp_path / "ppo.parquet")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("release.evidence.study.run_missing", lambda *_: pytest.fail("A run was started."))
    monkeypatch.setattr("sys.argv", ["study", *line.format(tmp_path).split()])
    with pytest.raises(SystemExit):
        sys.exit(main())
    assert message.format(tmp_path) in capsys.readouterr().err


def test_random_forks_at_another_rate_are_refused(plan, tmp_path):
    study, _, _, run = plan
    run()
    run_path(tmp_path, "threshold", 0).unlink()
    write_run(tmp_path, study, "threshold", 0, *range(5), fork_rate=0.5)
    with pytest.raises(ValueError, match=r"fork-probability 0\.2500' and not .*fork-probability 0\.5000'"):
        run()


def test_a_run_is_not_started_twice(tmp_path):
    for text, seeds in ((TEXT.replace("[0, 1]", "[0, 0]"), None), (TEXT, [0, 0])):
        with pytest.raises(ValueError, match=r"^seeds: grpo, seed 0 is named twice\.$"):
            jobs_of(write_study(tmp_path, text), None, seeds, tmp_path)


def test_two_calls_do_not_write_into_one_folder(tmp_path):
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        process_of(first, 1)
        with pytest.raises(ValueError, match="runs of an earlier call still write into it; wait for them, or end them"):
            process_of(second, 1)


def test_a_row_has_all_columns_and_no_other(tmp_path):
    path, table = tmp_path / "a-0.jsonl", tmp_path / "rows.parquet"
    append_row(path, {"arm": "a", "seed": 0, "iteration": 1, "delta": -0.5})
    (row,) = read_run(path)
    assert row == dict.fromkeys(COLUMNS) | {"arm": "a", "seed": 0, "iteration": 1, "delta": -0.5}
    with pytest.raises(ValueError, match="the column 'rate' is unknown"):
        append_row(path, {"rate": 1.0})
    rows = [make_row("a", 0, 0, 5, 0.5, delta=float("nan")), row]
    write_table(rows, table)
    assert read_table(table) == [rows[0] | {"delta": None}, row]


def test_a_table_has_all_rows_of_a_run_once_and_numbers_where_they_belong(tmp_path):
    table = tmp_path / "rows.parquet"
    rows = [make_row("a", 0, i, i, 0.5) for i in range(3)]
    for wrong in (rows + rows[1:2], rows[::2], rows[1:]):
        write_table(wrong, table)
        with pytest.raises(
            ValueError, match=r"rows\.parquet: a, seed 0 does not have each iteration from 0 on once\.$"
        ):
            read_table(table)
    pq.write_table(pa.table({"arm": ["a"], "seed": [0], "iteration": [0], "accuracy": ["high"]}), table)
    with pytest.raises(
        ValueError, match=r"rows\.parquet: not a readable parquet file \(Failed to parse string: 'high'"
    ):
        read_table(table)


def test_a_study_of_a_recipe_in_a_folder_of_its_own(tmp_path, model_folder, monkeypatch):
    """As docs/compare.md has it: the current folder has the recipe, the file and the rows."""
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
    assert "\n| grpo | 1 | " in table.stdout


@pytest.mark.slow
def test_the_table_of_rows_alone(tmp_path):
    """In a process of its own, as docs/evidence.md has it; an arm that is unknown is a sentence."""
    rows = FOLDER.parent / "results" / "trails-small.parquet"
    line = [sys.executable, "-m", "release.evidence.study", "--table", str(rows), "--output", str(tmp_path)]
    done = subprocess.run(line, cwd=FOLDER.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "### Costs to an accuracy of 0.8\n" in done.stdout
    assert done.stdout == (tmp_path / "tables.md").read_text() + "\n"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    wrong = subprocess.run([*line, "--arms", "ppo"], cwd=FOLDER.parents[2], capture_output=True, text=True)
    assert (wrong.returncode, "has no arm 'ppo'; there are grpo, grpo-two-steps" in wrong.stderr) == (1, True)
