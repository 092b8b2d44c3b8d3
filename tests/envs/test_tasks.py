"""The generated arithmetic: each split by itself, each number one question, right answers."""

from rllib_arpo.envs.tasks import ArithmeticTask


def test_a_number_names_one_question_and_the_test_split_repeats_itself():
    questions = [ArithmeticTask(seed=5).question(n) for n in range(30)]
    assert [ArithmeticTask(seed=5).question(n) for n in reversed(range(30))] == questions[::-1]
    assert [ArithmeticTask(seed=6).question(n) for n in range(30)] != questions
    test = ArithmeticTask(split="test")
    assert test.question(0) == ArithmeticTask(split="test", seed=6).question(0)
    assert [test.question(n) for n in range(64, 128)] == [test.question(n) for n in range(64)]


def test_the_splits_share_nothing_and_answers_are_right():
    train, test = ArithmeticTask(), ArithmeticTask(split="test")
    assert train.num_questions is None and test.num_questions == 64
    asked = {train.question(n).question_id for n in range(2000)}
    held_out = {test.question(n).question_id for n in range(64)}
    assert len(held_out) == 64
    assert not asked & held_out
    question = train.question(0)
    text = question.messages[-1][1].removeprefix("What is ").removesuffix("?")
    assert question.answers == (str(eval(text)),)
