import pytest

from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.support.boxes import answers_in_list, boxed, boxes, stated
from rllib_arpo.envs.tasks.specs import solved

#: A text, what its boxes hold, and the answer of a model that writes it.
TEXTS = [
    ("\\boxed{5}", ["5"], "5"),
    ("$\\boxed{5}$.", ["5"], "5"),
    ("$$ \\boxed {5} $$", ["5"], "5"),
    ("\\boxed\n{5}", ["5"], "5"),
    ("\\boxed5", ["5"], "5"),
    ("$\\boxed 5$", ["5"], "5"),
    ("\\boxed 42.", ["42"], "42"),
    ("\\boxed-3", ["-3"], "-3"),
    ("\\boxed A", ["A"], "A"),
    ("\\boxed\\pi", ["\\pi"], "\\pi"),
    ("\\boxed\\frac{1}{2}", ["\\frac{1}{2}"], "\\frac{1}{2}"),
    ("\\boxed\\frac12$", ["\\frac12"], "\\frac12"),
    ("\\fbox{5}", ["5"], "5"),
    ("\\fbox {$5$}", ["$5$"], "$5$"),
    ("\\\\boxed{5}", ["5"], "5"),
    ("\\boxed{ 5 }", ["5"], "5"),
    ("\\boxed{\\frac{1}{\\sqrt{2}}}", ["\\frac{1}{\\sqrt{2}}"], "\\frac{1}{\\sqrt{2}}"),
    ("\\boxed{\\{1,2\\}}", ["\\{1,2\\}"], "\\{1,2\\}"),
    ("\\boxed{\\}", [], None),
    ("\\boxed{a\\\\}", ["a\\\\"], "a\\\\"),
    ("\\boxed{5} so \\boxed{5}", ["5", "5"], "5"),
    ("\\boxed{4} or \\boxed{5}", ["4", "5"], None),
    ("\\boxed{4} or \\fbox5", ["4", "5"], None),
    ("\\boxed{a \\boxed{5} b}", ["a \\boxed{5} b"], "a \\boxed{5} b"),
    ("{\\boxed{5}} {", ["5"], "5"),
    ("\\boxed{}", [], None),
    ("\\boxed{5", [], None),
    ("\\boxed{5 and \\boxed{6}", ["6"], "6"),
    ("\\boxedtext{5}", [], None),
    ("\\boxed", [], None),
    ("boxed{5}", [], None),
    ("5", [], None),
]


@pytest.mark.parametrize(("text", "held", "answer"), TEXTS)
def test_what_boxes_hold_is_the_models_answer_and_the_datas(text, held, answer):
    assert (boxes(text), boxed(text)) == (held, answer)
    assert TagProtocol().parse(f"<answer> {text} </answer>").text == answer
    if held:
        assert solved(f"So {text}") == (held[-1],)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "5"),
        ("$\\boxed{5}$", "5"),
        ("The answer is $\\boxed{5}$.", "5"),
        ("\\boxed{4}, no: \\fbox{5}", "5"),
        ("#### 5", "5"),
        ("2 + 3 = 5\n#### 1,005 ", "1,005"),
        ("The answer is 5.", "5"),
        ("the final answer is: $\\frac{1}{2}$.", "$\\frac{1}{2}$"),
        ("Therefore, the answer is (C).", "(C)"),
        ("**Answer:** 5", "5"),
        ("Answer: 0.5", "0.5"),
        ("\\text{The answer is } \\frac{1}{2}", "\\frac{1}{2}"),
        ("x = 5", "x = 5"),
        ("\\text{answered}", "\\text{answered}"),
        ("no answer", "no answer"),
    ],
)
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
        ("[]", ["[]"]),
        ("[" * 100_000, ["[" * 100_000]),
    ],
)
def test_a_gold_answer_may_be_a_list_of_texts(gold, answers):
    assert answers_in_list(gold) == answers
