"""A run on the disk: what plots read of it, and the command `show --plots`."""

import json

import pytest

from rllib_arpo.commands import main
from rllib_arpo.plots.run_data import read_results, read_run, trial_folders

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_plots_of_a_record_without_results(record, tmp_path, capsys):
    """The accuracy before training, the entropies, the rises and the forks are in the record."""
    output = tmp_path / "plots"
    assert main(["show", str(record), "--plots", "--output", str(output)]) == 0
    drawn = ["accuracy.png", "entropy.png", "entropy_rise.png", "forks.png"]
    assert sorted(path.name for path in output.iterdir()) == [*drawn, "plots.html"]
    assert all((output / name).read_bytes().startswith(PNG) for name in drawn)
    page, missing = (output / "plots.html").read_text(), "The run has executed no tool call."
    assert page.count('src="data:image/png;base64,') == 4 and missing in page
    assert capsys.readouterr().out.splitlines() == [
        f"Accuracy against tool calls: {missing}",
        f"{output}/plots.html and 4 PNG files: open it in a browser.",
    ]


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["{run}", "--plots", "--limit", "3"], "--limit: not with --plots, which draws no trees."),
    (["{run}", "--plots", "--question", "lamps"], "--question: not with --plots, which draws no trees."),
    (["--plots", "--compare", "{run}", "{run}"], "--compare: not with --plots, which draws no trees."),
    (["{run}/trees/iteration-00001.parquet", "--plots"],
     "{run}/trees/iteration-00001.parquet: is not the folder of a run: it has no result.json and no trees."),
])  # fmt: skip
def test_mistakes(record, tmp_path, capsys, arguments, sentence):
    filled = [argument.replace("{run}", str(record)) for argument in arguments]
    assert main(["show", *filled, "--output", str(tmp_path / "plots")]) == 2
    assert capsys.readouterr().err == f"error: {sentence.replace('{run}', str(record))}\n"
    assert not (tmp_path / "plots").exists()


def test_the_record_of_a_run_without_results(record):
    run = read_run(record)
    assert (run.results, run.settings["num_rollouts"]) == ([], 5)
    rows = run.rows("training")
    rows = rows[rows["question_id"] == "lamps"].astype(object).where(lambda table: table.notna(), None)
    names = ["agent_id", "parent", "turn", "depth", "after_tool", "delta", "children", "accuracy"]
    assert list(rows[names].itertuples(index=False, name=None)) == [
        ("0", None, 0, 0, None, None, None, 1.0),
        ("0", None, 1, 1, "search", 0.25, 1, 1.0),
        ("1", None, 0, 0, None, None, None, 0.0),
        ("2", None, None, None, None, None, None, 0.0),
        ("0.0", "0", 0, 1, "search", None, None, 0.0),
    ]
    assert [entropies.tolist() for entropies in rows["entropies"][:2]] == [[0.5, 1.0], [2.0]]


def test_only_the_first_and_the_last_evaluation_are_read(record, tmp_path):
    (tmp_path / "trees").mkdir()
    source = record / "trees" / "evaluation-00003.parquet"
    for name in ("iteration-00001", "evaluation-00001", "evaluation-00002", "evaluation-00004"):
        (tmp_path / "trees" / f"{name}.parquet").write_bytes(source.read_bytes())
    assert len(read_run(tmp_path).record) == 3 * 10


def test_results_are_in_order_and_the_last_of_each_iteration_counts(tmp_path):
    rows = [{"training_iteration": 1}, {"training_iteration": 2, "of": "lost"}, {"training_iteration": 2, "of": "kept"}]
    path = tmp_path / "result.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"training_iter')
    assert read_results(path) == [{"training_iteration": 1}, {"training_iteration": 2, "of": "kept"}]
    assert read_results(tmp_path / "missing.json") == []


def test_the_folders_of_trials(record, tmp_path, capsys):
    assert trial_folders(record) == [record]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "result.json").touch()
    assert trial_folders(tmp_path) == [tmp_path / "one"]
    (tmp_path / "two" / "trees").mkdir(parents=True)
    assert trial_folders(tmp_path) == [tmp_path / "one", tmp_path / "two"]
    assert main(["show", str(tmp_path), "--plots"]) == 2
    sentence = f"{tmp_path}: has 2 trials; name the folder of one, such as {tmp_path / 'one'}."
    assert capsys.readouterr().err == f"error: {sentence}\n"
