import pytest

from rllib_arpo.envs.rewards import bounded_f1, exact_match, normalize_text, token_f1


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("The Eiffel Tower", "eiffel tower!", 1.0),
        ("Paris, France", "Paris", 2 / 3),
        ("p q r s", "r s t u", 0.5),
        ("no no", "no", 0.0),
        ("yes no", "yes", 0.0),
        ("The The", "!", 0.0),
        ("", "Paris", 0.0),
        ("2024", "-2024", 0.0),
    ],
)
def test_token_f1(answer, gold, expected):
    assert token_f1(answer, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("Barack Hussein Obama", ["Barack Obama"], 0.8),
        ("Obama", ["Barack Obama"], 2 / 3),
        ("Paris London", ["Paris"], 0.0),
        ("Paris or London", ["Paris", "London"], 0.0),
        ("NYC", ["New York City", "nyc."], 1.0),
        ("a b c d e f g h", ["h"], 0.0),
        ("Barack Obama Donald Trump", ["Barack Obama"], 0.0),
    ],
)
def test_f1_pays_for_no_lists(answer, gold, expected):
    assert bounded_f1(answer, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("NYC", ["New York City", "nyc."], 1.0),
        ("1,000", ["1000"], 1.0),
        ("$3.50", ["3.50"], 1.0),
        ("3.5 million", ["35 million"], 0.0),
        ("1/2", ["12"], 0.0),
        ("-5", ["5"], 0.0),
        ("U.S.", ["US"], 1.0),
        ("\\text{The Eiffel Tower}", ["Eiffel Tower"], 1.0),
        ("Spider-Man", ["spiderman"], 1.0),
    ],
)
def test_exact_match(answer, gold, expected):
    assert exact_match(answer, gold) == expected


def test_normalisation_is_squads():
    assert normalize_text("  The  Cat's\thouse, a (big) one. ") == "cats house big one"
