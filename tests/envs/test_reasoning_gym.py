import asyncio

import pytest

from rllib_arpo.envs.tasks import reasoning_gym
from rllib_arpo.envs.tasks.reasoning_gym import UNSTABLE, ReasoningGymTask

pytest.importorskip("reasoning_gym", reason="The reasoning-gym library is not installed.")

CONFIG = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def chain_sum(**changes) -> ReasoningGymTask:
    return ReasoningGymTask(dataset="chain_sum", config=CONFIG, **changes)


def test_the_questions_of_a_generator():
    task = chain_sum(size=50)
    question = task.question(7)
    ((role, text),) = question.messages
    expression = text.removeprefix("State the final answer to the following arithmetic problem: ").removesuffix(" =")
    assert (role, question.answers) == ("user", (str(eval(expression)),))
    assert question.ability == "reasoning_gym"
    assert chain_sum(size=50).question(7) == question
    epochs = [[task.question(n).question_id for n in range(e * 50, e * 50 + 50)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    assert chain_sum(size=50, seed=1).question(7).messages != question.messages


def test_the_test_split_has_questions_of_its_own_in_fixed_order():
    task = ReasoningGymTask(dataset="products", split="test", test_size=20)
    asked = [task.question(n) for n in range(40)]
    assert task.num_questions == 20 and asked[:20] == asked[20:]
    train = ReasoningGymTask(dataset="products", size=20)
    assert not {q.messages for q in asked} & {train.question(n).messages for n in range(20)}


@pytest.mark.slow
def test_every_generators_own_answer_gets_the_librarys_score():
    """What keeps programs out of the scorers takes no honest answer for one."""
    import reasoning_gym as library
    from reasoning_gym.factory import DATASETS

    tasks = [ReasoningGymTask(dataset=name, size=2) for name in DATASETS if name not in ("composite", *UNSTABLE)]
    asked = [(task, task.question(number)) for task in tasks for number in range(2)]
    asked = [(task, q) for task, q in asked if "Integral(" not in q.answers[0]]  # no antiderivative, see the guard

    async def accuracies():
        return await asyncio.gather(*(task.accuracy(q.answers[0], q) for task, q in asked))

    scorers = {task.dataset: library.create_dataset(task.dataset, seed=0, size=1) for task in tasks}
    expected = [scorers[task.dataset].score_answer(q.answers[0], q.scoring["entry"]) == 1.0 for task, q in asked]
    found = asyncio.run(accuracies())
    assert sum(expected) > 0.9 * len(asked)
    assert [q.question_id for (_, q), a, b in zip(asked, expected, found, strict=True) if a != b] == []


def test_another_solution_than_the_generators_counts():
    task = ReasoningGymTask(dataset="countdown", config={"min_numbers": 2, "max_numbers": 2}, size=20)
    sums = [q for q in map(task.question, range(20)) if " + " in q.answers[0]]
    left, right = sums[0].answers[0].split(" + ")
    assert asyncio.run(task.accuracy(f"{right} + {left}", sums[0])) == 1.0
    assert asyncio.run(task.accuracy(f"{right} - {left}", sums[0])) == 0.0


def test_partial_credit_is_a_matter_of_choice():
    strict, lenient = (ReasoningGymTask(dataset="countdown", size=3, partial_credit=on) for on in (False, True))
    question = strict.question(0)
    assert asyncio.run(strict.accuracy("7", question)) == 0.0
    assert 0.0 < asyncio.run(lenient.accuracy("7", question)) < 1.0


@pytest.mark.parametrize(
    ("output", "score"), [("0.25\n", 0.25), ("Only placed 3\n1.0\n", 1.0), ("", 0.0), ("nan", 0.0), ("1.5", 0.0)]
)
def test_a_score_is_the_number_in_the_last_line(output, score):
    assert reasoning_gym.read_score(output) == score


def test_without_a_sandbox_the_task_is_refused(monkeypatch):
    monkeypatch.setattr(reasoning_gym.bubblewrap, "_problem", lambda: "The python tool needs bubblewrap.")
    message = "^task 'reasoning_gym' scores in a sandbox and has no unsafe mode. The python tool needs bubblewrap.$"
    with pytest.raises(ValueError, match=message):
        chain_sum()
