"""The best recorded trajectories as examples of a cold start."""

from dataclasses import replace

import pytest

from rllib_arpo.cold_start.examples import load_recorded
from rllib_arpo.envs.errors import DataError
from tests.record.trees import HELPED, TOKENIZER, TREE
from tests.show.conftest import write_record


def example(*pieces: tuple[str, bool]) -> dict[str, list[int]]:
    """Texts, each with whether the model wrote it."""
    ids = [(token, generated) for text, generated in pieces for token in TOKENIZER.encode(text)]
    return {"input_ids": [token for token, _ in ids], "labels": [token if own else -100 for token, own in ids]}


RIGHT = example(("Q?", False), ("<s>é", True), ("12", False), ("A", True))
WRONG = example(("Q?", False), ("B", True))


def test_the_best_trajectories_are_examples_as_they_were_sampled(tmp_path, model_folder, capsys):
    """ "0" has earned 1, "1" -1; "2" and "0.0" are masked."""
    write_record(tmp_path, model_folder, [TREE, replace(TREE, question_id="again")])
    assert load_recorded(tmp_path / "trees", 9, -10.0, 100, 256) == [RIGHT, WRONG, RIGHT, WRONG]
    assert load_recorded(tmp_path, 1, -10.0, 100, 256) == [RIGHT, RIGHT]
    assert load_recorded(tmp_path, 1, -10.0, len(WRONG["input_ids"]), 256) == [WRONG, WRONG]
    capsys.readouterr()
    assert load_recorded(tmp_path, 9, 1.0, 100, 256) == [RIGHT, RIGHT]
    assert capsys.readouterr().out == "2 trajectories of 2 questions, of 2 that earned enough.\n"


def test_each_conversation_of_a_trajectory_is_an_example(tmp_path, model_folder, capsys):
    """What the third shares with the first is in the loss of the first alone; `best` counts trajectories."""
    write_record(tmp_path, model_folder, [HELPED])
    first = example(("Q?", False), ("A", True))
    helper = example(("QH!", False), ("B", True))
    assert load_recorded(tmp_path, 1, -10.0, 100, 256) == [first, helper, example(("Q?A3", False), ("C", True))]
    assert capsys.readouterr().out == "1 trajectories of 1 questions, of 2 that earned enough.\n"
    with pytest.raises(DataError, match=r"at most 4 tokens\.$"):
        load_recorded(tmp_path, 1, -10.0, 4, 256)


def test_what_cannot_be_learned_from_is_one_sentence(tmp_path, model_folder):
    write_record(tmp_path, model_folder, [TREE])
    for arguments, message in {
        (1, 99.0, 100, 256): r"no trajectory has a reward of 99 and at most 100 tokens\.$",
        (1, -10.0, 2, 256): r"no trajectory has a reward of -10 and at most 2 tokens\.$",
        (1, -10.0, 100, 50): r"it has the token id \d+; the model has 0 to 49\.$",
    }.items():
        with pytest.raises(DataError, match=message):
            load_recorded(tmp_path, *arguments)
    with pytest.raises(DataError, match=r"neither a parquet file of a record nor a folder"):
        load_recorded(tmp_path / "trees" / "none", 1, 0.0, 10, 10)
