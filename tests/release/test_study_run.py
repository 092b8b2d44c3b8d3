"""One run of a study, really made: with the scripted engine, on a tiny model."""

from types import SimpleNamespace

import pytest

from release.evidence.study_rows import COLUMNS, read_run, run_path
from release.evidence.study_run import distinct_answers, find, main, run
from release.evidence.study_table import all_tables
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.release.study_rows import TEXT, write_run, write_study

#: What depends on the clock.
CLOCK = {"seconds", "cpu_seconds"}


def without_clock(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in rows]


def test_a_row_made_again_is_the_same(ray_cluster, model_folder, tmp_path, monkeypatch):
    """A killed run's rows are deleted, and the run is begun anew; each iteration is a row."""
    monkeypatch.setenv("TINY_MODEL", model_folder)
    study = write_study(tmp_path, TEXT.replace("iterations: 4", "iterations: 2"))
    made = []
    for _ in range(2):
        run(study, study.arms["threshold"], 3, tmp_path)
        made.append(read_run(run_path(tmp_path, "threshold", 3)))
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
    # Totals grow; all that is packed is computed, since nothing is skipped.
    totals = [[row[name] for row in first] for name in ("generated_tokens", "computed_tokens", *CLOCK)]
    assert all(a == 0 < b < c for a, b, c in totals)
    # The task does not say which responses are decisive.
    assert "decisive" not in all_tables(first, "threshold", [0.5], 0)


@pytest.mark.parametrize(("arm", "message"), [
    ("grpo", "{path}: the run is finished; take another --output.\n"),
    ("ppo", "tiny_study.yaml: has no arm 'ppo'; there are grpo, threshold, random.\n"),
    ("random", "threshold-0.jsonl: the run whose fork rate 'random' has is not finished.\n"),
])  # fmt: skip
def test_a_run_that_cannot_be_begun_is_a_sentence(tmp_path, monkeypatch, capsys, arm, message):
    study = write_study(tmp_path)
    path = write_run(tmp_path, study, "grpo", 0, *range(5))
    write_run(tmp_path, study, "threshold", 0, *range(4), fork_rate=0.25)
    monkeypatch.setattr("release.evidence.study_run.run", lambda *_: pytest.fail("The run was begun."))
    line = ["study_run", str(study.path), "--arm", arm, "--seed", "0", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.endswith(message.format(path=path))
    assert len(read_run(path)) == 5


def test_different_answers_of_a_question():
    """Three answers of which two are the same, one that is no answer, one without a box; then a question with none."""
    texts = {1: "<answer> \\boxed{7} </answer>", 2: "<answer>\\boxed{7}</answer>", 3: "<answer> \\boxed{8} </answer>",
             4: "I do not know", 5: "<answer> 9 </answer>"}  # fmt: skip
    trees = [
        make_tree([0], [make_trajectory(str(i), [make_turn([token])]) for i, token in enumerate(tokens)])
        for tokens in ((1, 2, 3, 4, 5), (4, 4))
    ]
    questions = [SimpleNamespace(tree=tree) for tree in trees]
    assert distinct_answers(questions, lambda tokens: texts[int(tokens[0])]) == (2 + 0) / 2
    assert distinct_answers(questions[1:], lambda tokens: texts[int(tokens[0])]) is None


def test_a_metric_without_a_value_is_null():
    results = [{"a": {"b": 0.5}}, {"a": {"b": float("nan")}}, {"a": 1.0}, {}]
    assert [find(result, ("a", "b")) for result in results] == [0.5, None, None, None]
