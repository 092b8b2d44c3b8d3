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
        ("Barack Trump Donald Obama", ["Barack Obama"], 0.0),
        ("no, yes", ["yes"], 0.0),
        ("yesno", ["no"], 0.0),
        ("12", ["1/2"], 0.0),
        ("!", ["Barack Obama"], 0.0),
    ],
)
def test_f1_pays_for_no_lists(answer, gold, expected):
    assert bounded_f1(answer, gold) == pytest.approx(expected)


#: Pairs of the same answer, and of different ones.
SAME = [
    ("O’Brien", "O'Brien"), ("“Heroes”", "Heroes"), ("‘Round Midnight", "'Round Midnight"), ("1914–1918", "1914-1918"),
    ("Jean−Luc", "Jean-Luc"), ("Cafe\u0301", "Caf\u00e9"), ("1,000,000", "1000000"), (".5", "0.5"), ("C++", "c++."),
    ("C# (language)", "C# language"), ("AT&T", "ATT"), ("M*A*S*H", "MASH"), ("The Beatles.", "beatles"), ("#1", "1"),
    ("(10:30)", "10:30"), ("$-5$", "-5"), ("Spider–Man", "spiderman"), ("St. Louis", "st louis"), ("a+b", "ab"),
    ("$3.50", "3.50"), ("3 1/2", "3 1/2"), ("Catch-22", "catch22"), ("«Carmen»", "Carmen"), ("U.S.A.", "USA"),
    ("Ben & Jerry's", "Ben Jerrys"), ("A Night at the Opera", "night at opera"),
    ("50%", "50"), ("Vitamin A", "vitamin a"), ("1914 – 1918", "1914-1918"), ("**Paris**", "Paris"),
    ("*Hamlet*", "hamlet"), ("C\\#", "C#"), ("\\emph{Hamlet}", "Hamlet"), ("AT\\&T", "AT&T"), ("New~York", "New York"),
    ("\\texttt{C++}", "C++"), ("Ｃ＋＋", "C++"), ("ﬁfty", "fifty"), ("½", "1/2"), ("3½", "3 1/2"),
    ("\\textbf{A$^-$}", "A^-"), ("北京。", "北京"), ("《红楼梦》", "红楼梦"), ("東京都、日本", "東京都 日本"),
    ("मुंबई।", "मुंबई"), ("¿Qué", "Qué"), ("北京！", "北京"),
]  # fmt: skip
DIFFERENT = [
    ("C++", "C"), ("C#", "C"), ("C++", "C#"), ("2-1", "21"), ("2–1", "21"), ("10^6", "106"), ("1,5", "15"),
    ("6'2", "62"), (".5", "5"), ("3*4", "34"), ("1+1", "11"), ("A+", "A"), ("50+", "50"), ("-5", "5"), ("−5", "5"),
    ("(-5)", "5"),
    ("5_6", "56"), ("1=2", "12"), ("2020-01-02", "20200102"), ("9/11", "911"), ("24/7", "247"), ("12:30", "1230"),
    ("Vitamin A", "Vitamin"), ("Vitamin A", "Vitamin B"), ("The The", "The"), ("10\u00b2", "102"), ("1..2", "12"),
    ("3,14", "314"), ("F#", "F"), ("Obama’s", "Obama"), ("A-", "A"), ("A-", "A+"), ("AB−", "AB"), ("Rh-", "Rh"),
    ("Cl−", "Cl"), ("A*", "A"), ("C--", "C"), ("18-", "18"), ("C++11", "C11"), ("<5", "5"), (">5", "<5"),
    ("3.5 million", "35 million"), ("no, yes", "yes"),
    ("2 - 1", "2 1"), ("½", "12"), ("3½", "31/2"), ("x₁", "x1"), ("①", "1"),
    ("北京。", "上海。"), ("。", "!"),
]  # fmt: skip


@pytest.mark.parametrize(("pairs", "expected"), [(SAME, 1.0), (DIFFERENT, 0.0)])
def test_what_is_the_same_answer(pairs, expected):
    both = [*pairs, *((gold, answer) for answer, gold in pairs)]
    assert [pair for pair in both if exact_match(pair[0], [pair[1]]) != expected] == []


def test_any_right_answer_counts():
    assert exact_match("NYC", ["New York City", "nyc."]) == 1.0


def test_normalisation_is_squads():
    assert normalize_text("  The  Cat's\thouse, a (big) one. ") == "cats house big one"
