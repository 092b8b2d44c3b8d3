"""Tasks whose questions are made: each split by itself, each number one question, each epoch in another order."""

import pytest

from rllib_arpo.envs.tasks import ArithmeticTask, CatalogueTask
from rllib_arpo.envs.tasks.catalogue import SHOTS, items


def test_the_catalogues_splits_share_nothing():
    train, test = CatalogueTask(split="train"), CatalogueTask(split="test")
    assert len(items("train")) == 80 and len(items("test")) == 64
    words = [{word for item in items(split) for word in (item, item.split()[1])} for split in ("train", "test")]
    shown = {word for _, _, found in SHOTS for item in found for word in (item, item.split()[1])}
    assert not words[0] & words[1] and not shown & (words[0] | words[1])
    asked = [{task.question(n).messages[-1][1] for n in range(task.num_questions)} for task in (train, test)]
    assert (len(asked[0]), len(asked[1])) == (880, 64)
    assert not asked[0] & asked[1]
    seen_in_training = " ".join(asked[0]) + str(train.tool_defaults()) + train.question(0).messages[0][1]
    assert not [item for item in items("test") if item in seen_in_training]


@pytest.mark.parametrize("split", ["train", "test"])
def test_items_that_are_shown_together_have_different_prices(split):
    prices = CatalogueTask(split=split).prices()
    for noun in {item.split()[1] for item in prices}:
        assert len({price for item, price in prices.items() if item.split()[1] == noun}) == 4


@pytest.mark.parametrize("task", [CatalogueTask, ArithmeticTask])
def test_a_number_names_one_question_and_the_test_split_repeats_itself(task):
    questions = [task(seed=5).question(n) for n in range(30)]
    assert [task(seed=5).question(n) for n in reversed(range(30))] == questions[::-1]
    assert [task(seed=6).question(n) for n in range(30)] != questions
    test = task(split="test")
    assert [test.question(n) for n in range(64, 128)] == [test.question(n) for n in range(64)]


def test_epochs_are_shuffled_anew():
    train = CatalogueTask()
    epochs = [[train.question(n).question_id for n in range(e * 880, (e + 1) * 880)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


def test_arithmetic_splits_are_disjoint_and_answers_right():
    train, test = ArithmeticTask(), ArithmeticTask(split="test")
    assert train.num_questions is None and test.num_questions == 64
    asked = {train.question(n).question_id for n in range(2000)}
    held_out = {test.question(n).question_id for n in range(64)}
    assert len(held_out) == 64
    assert not asked & held_out
    question = train.question(0)
    text = question.messages[-1][1].removeprefix("What is ").removesuffix("?")
    assert question.answers == (str(eval(text)),)
