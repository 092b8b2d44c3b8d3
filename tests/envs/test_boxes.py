from pathlib import Path

import pytest

from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.support.boxes import answers_in_list, boxed, boxes, stated
from rllib_arpo.envs.tasks.specs import solved

TEXTS, GOLDS = (
    [line.split("\t") for line in part.splitlines()[1:]]
    for part in Path(__file__).with_name("boxes.tsv").read_text(encoding="utf-8").split("\n# ")
)


@pytest.mark.parametrize("row", [*TEXTS, ["\\boxed\n{5}", "5"]], ids=lambda row: row[0])
def test_what_boxes_hold_is_the_models_answer_and_the_datas(row):
    text, *held = row
    answer = held[0] if len(set(held)) == 1 else None
    assert (boxes(text), boxed(text)) == (held, answer)
    assert TagProtocol().parse(f"<answer> {text} </answer>").text == answer
    if held:
        assert solved(f"So {text}") == (held[-1],)


@pytest.mark.parametrize(("gold", "answer"), [*GOLDS, ("2 + 3 = 5\n#### 1,005 ", "1,005")])
def test_a_gold_answer_is_what_it_states(gold, answer):
    assert stated(gold) == stated(stated(gold)) == answer


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        ('["5"]', ["5"]),
        ('["\\\\frac{1}{2}"]', ["\\frac{1}{2}"]),
        ('["5", "five"]', ["5", "five"]),
        ("[1, 2]", ["[1, 2]"]),
        ("[0,1)", ["[0,1)"]),
        (r"\textbf{(B)}\ 12", [r"\textbf{(B)}\ 12", "B", "12"]),
        (r"\text{(C) }~\frac12", [r"\text{(C) }~\frac12", "C", r"\frac12"]),
        (r"\textbf{(B)}", [r"\textbf{(B)}"]),
        ("[]", ["[]"]),
        ("[" * 100_000, ["[" * 100_000]),
    ],
)
def test_a_gold_answer_may_be_a_list_of_texts(gold, answers):
    assert answers_in_list(gold) == answers
