"""The command `show --plots`, and what it writes of a run that lacks most."""

import pytest

from rllib_arpo.commands import main
from rllib_arpo.plots import iterations, trees
from rllib_arpo.plots.run_data import MissingDataError
from tests.plots.runs import result, row, run_data

PNG = b"\x89PNG\r\n\x1a\n"
NO_RESULTS = {
    "Accuracy against tool calls": "The run has executed no tool call.",
}


def test_a_record_without_results(record, tmp_path, capsys):
    """The accuracy before training, the entropies, the rises and the forks are in the record."""
    output = tmp_path / "plots"
    assert main(["show", str(record), "--plots", "--output", str(output)]) == 0
    drawn = ["accuracy.png", "entropy.png", "entropy_rise.png", "forks.png"]
    assert sorted(path.name for path in output.iterdir()) == [*drawn, "plots.html"]
    assert all((output / name).read_bytes().startswith(PNG) for name in drawn)
    page = (output / "plots.html").read_text()
    assert page.count('src="data:image/png;base64,') == 4
    said = [f"{title}: {sentence}" for title, sentence in NO_RESULTS.items()]
    assert all(sentence in page for sentence in NO_RESULTS.values())
    assert capsys.readouterr().out.splitlines() == [
        *said,
        f"{output}/plots.html and 4 PNG files: open it in a browser.",
    ]


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["{run}", "--plots", "--limit", "3"], "--limit: --plots draws no trees."),
    (["{run}", "--plots", "--question", "lamps"], "--question: --plots draws no trees."),
    (["--plots", "--compare", "{run}", "{run}"], "--compare: --plots draws no trees."),
    (["{run}/trees/iteration-00001.parquet", "--plots"],
     "{run}/trees/iteration-00001.parquet: not the folder of a run: it has no result.json and no trees."),
])  # fmt: skip
def test_mistakes(record, tmp_path, capsys, arguments, sentence):
    filled = [argument.replace("{run}", str(record)) for argument in arguments]
    assert main(["show", *filled, "--output", str(tmp_path / "plots")]) == 2
    assert capsys.readouterr().err == f"error: {sentence.replace('{run}', str(record))}\n"
    assert not (tmp_path / "plots").exists()


@pytest.mark.parametrize(("draw", "run", "sentence"), [
    (iterations.draw_progress, run_data(), "No result of the run has an accuracy or a reward."),
    (iterations.draw_accuracy_by_calls, run_data(results=[result(1, 0.5, 1.0, 0)]),
     "The run has executed no tool call."),
    (trees.draw_entropy, run_data(),
     "The run has no record of its trees (record_share=None, or nothing was recorded yet)."),
    (trees.draw_entropy, run_data([row(entropies=None)]), "No recorded turn has an entropy."),
    (trees.draw_rises, run_data([row()]),
     "No recorded tool response was followed by a turn, so that nothing could rise."),
    (trees.draw_forks, run_data(), "The record has no training question: a larger record_share keeps more of them."),
    (trees.draw_forks, run_data([row()]), "No recorded training question was forked."),
])  # fmt: skip
def test_a_run_without_the_data_of_a_plot(draw, run, sentence):
    with pytest.raises(MissingDataError) as error:
        draw(run)
    assert str(error.value) == sentence
