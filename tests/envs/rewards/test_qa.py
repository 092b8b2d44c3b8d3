from pathlib import Path

import pytest

from rllib_arpo.envs.rewards import bounded_f1, exact_match, normalize_text, token_f1

PAIRS = Path(__file__).with_name("qa_pairs.tsv")


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("The Eiffel Tower", ["eiffel tower!"], 1.0),
        ("Barack Hussein Obama", ["Barack Obama"], 0.8),
        ("Paris, France", ["Paris"], 0.0),
        ("Obama", ["Barack Obama"], 2 / 3),
        ("Obama", [], 0.0),
        ("Paris London", ["Paris"], 0.0),
        ("Paris or London", ["Paris", "London"], 0.0),
        ("NYC", ["New York City", "nyc."], 1.0),
        ("a b c d e f g h", ["h"], 0.0),
        ("Barack Obama Donald Trump", ["Barack Obama"], 0.0),
        ("Barack Trump Donald Obama", ["Barack Obama"], 0.0),
        ("no, yes", ["yes"], 0.0),
        ("yesno", ["no"], 0.0),
        ("12", ["1/2"], 0.0),
        ("!", ["Barack Obama"], 0.0),
        ("The The", ["!"], 0.0),
        ("2024", ["-2024"], 0.0),
        # Chinese and Japanese by characters.
        ("北京", ["北京市"], 0.8),
        ("北京市", ["北京"], 0.8),
        ("东京大学", ["北京大学"], 0.75),
        ("北京上海", ["北京"], 0.0),
        ("Tokyo 東京都", ["東京都"], 6 / 7),
        ("ｶﾞﾝﾀﾞﾑ", ["ガンダム2"], 8 / 9),
        ("Paris", ["$\\boxed{\\text{Paris}}$"], 1.0),
    ],
)
def test_f1_pays_for_no_lists(answer, gold, expected):
    assert bounded_f1(answer, gold) == pytest.approx(expected)


def test_what_is_the_same_answer():
    rows = [line.split("\t") for line in PAIRS.read_text(encoding="utf-8").split("\n")[1:-1]]
    both = [*rows, *((verdict, gold, answer) for verdict, answer, gold in rows)]
    assert [row for row in both if exact_match(row[1], [row[2]]) != (row[0] == "equal")] == []


def test_token_f1_has_no_bound_but_for_yes_and_no():
    assert token_f1("Paris, France", "Paris") == token_f1("中国北京", "北京") == pytest.approx(2 / 3)
    assert token_f1("p q r s", "r s t u") == 0.5
    assert token_f1("yes no", "yes") == token_f1("", "Paris") == 0.0


def test_a_gold_answer_may_stand_in_a_box():
    assert exact_match("paris", ["\\boxed {Paris}"]) == token_f1("paris", "\\boxed {Paris}") == 1.0
    assert exact_match("London", ["\\boxed{Paris}"]) == 0.0


def test_normalisation_is_squads():
    assert normalize_text("  The  Cat's\thouse, a (big) one. ") == "cats house big one"
