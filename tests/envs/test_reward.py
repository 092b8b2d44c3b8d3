import asyncio

import pytest

from rllib_arpo.envs import reward
from rllib_arpo.envs.reward import (
    accuracy_of,
    exact_match_accuracy,
    hierarchical_reward,
    math_accuracy,
    normalize_text,
    token_f1,
)
from rllib_arpo.envs.tools.tool import BrokenToolError

BOTH = {"search", "python"}


@pytest.mark.parametrize(
    ("format_valid", "accuracy", "executed", "expected"),
    [
        (False, 0.0, set(), -1.0),
        (False, 1.0, BOTH, -1.0),
        (True, 0.0, set(), 0.0),
        (True, 0.0, BOTH, 0.0),
        (True, 1.0, set(), 1.0),
        (True, 1.0, {"python"}, 1.0),
        (True, 1.0, {"search"}, 1.0),
        (True, 1.0, BOTH, 1.1),
        (True, 0.5, BOTH, 0.6),
        (True, 0.5, {*BOTH, "browse"}, 0.6),
    ],
)
def test_reward_table(format_valid, accuracy, executed, expected):
    assert hierarchical_reward(format_valid, accuracy, executed) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("84", "84", True),
        ("84.0", "84", True),
        ("1/2", "0.5", True),
        ("\\frac{1}{2}", "0.5", True),
        ("-\\frac{1}{2}", "-1/2", True),
        ("2024", "-2024", False),
        ("-5", "5", False),
        ("1/2", "12", False),
        ("518400", "518,\\!400", True),
        ("1,234.5", "1234.5", True),
        ("1/0", "0", False),
        ("0.333", "1/3", False),
        ("$84$", "84", True),
        ("x + 1", "x+1", True),
        ("2\\sqrt{3}", "\\sqrt{12}", True),
        ("2\\sqrt{3}", "\\sqrt{13}", False),
        ("(1,2)", "(2,1)", False),
        ("\\frac{", "1", False),
        ("5$ or $2\\sqrt{3}", "2\\sqrt{3}", False),
        ("9" * 5000, "\\pi", False),
        ("'''\"", "\\pi", False),
    ],
)
def test_math_is_symbolic_equality(answer, gold, equal):
    assert asyncio.run(math_accuracy(answer, [gold])) == float(equal)


@pytest.mark.parametrize("gold", ["0.5", "-3", "\\frac{7}{4}"])
def test_numbers_compare_as_math_verify_compares_them(gold, monkeypatch):
    answers = ["1/2", ".5", "-3.0", "3", "\\frac{14}{8}", "1.75", "-0.5"]
    fast = [asyncio.run(math_accuracy(answer, [gold])) for answer in answers]
    monkeypatch.setattr(reward, "as_number", lambda text: None)
    assert [asyncio.run(math_accuracy(answer, [gold])) for answer in answers] == fast
    assert 0.0 in fast and 1.0 in fast


def test_a_comparison_that_never_ends_is_killed(monkeypatch):
    monkeypatch.setattr(reward, "VERIFY_TIMEOUT_S", 0.5)
    assert asyncio.run(math_accuracy("9^{9^{9^{9}}}", ["3"])) == 0.0


#: A stand-in for math-verify whose comparison does what is filled in.
STAND_IN = """
import os, sys, types
def verify(gold, answer, **options):
    {action}
module = types.ModuleType("math_verify")
module.parse, module.verify = lambda text, **options: text, verify
sys.modules["math_verify"] = module
"""


@pytest.mark.parametrize(
    ("action", "accuracy"),
    [
        ("return True", 1.0),
        ("return False", 0.0),
        ("raise KeyError('x')", 0.0),
        ("raise NotImplementedError", 0.0),
        ("raise SystemExit('x')", 0.0),
        ("os._exit(3)", 0.0),
        ("os.abort()", 0.0),
    ],
)
def test_a_comparison_that_fails_is_a_wrong_answer(monkeypatch, action, accuracy):
    monkeypatch.setattr(reward, "_VERIFY_SETUP", STAND_IN.format(action=action))
    assert asyncio.run(math_accuracy("x", ["y"])) == accuracy


def test_a_comparing_process_that_does_not_start_is_a_broken_tool(monkeypatch):
    monkeypatch.setattr(reward, "_VERIFY_SETUP", "import there_is_no_math_verify")
    with pytest.raises(BrokenToolError, match="did not start"):
        asyncio.run(math_accuracy("x", ["y"]))


def test_any_alias_counts():
    assert asyncio.run(math_accuracy("0.5", ["7", "1/2"])) == 1.0
    assert asyncio.run(exact_match_accuracy("NYC", ["New York City", "nyc."])) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("The Eiffel Tower", "eiffel tower!", 1.0),
        ("Paris, France", "Paris", 2 / 3),
        ("p q r s", "r s t u", 0.5),
        ("no no", "no", 0.0),
        ("yes", "no", 0.0),
        ("yes, it is", "yes", 0.0),
        ("London", "Paris", 0.0),
        ("The The", "!", 0.0),
    ],
)
def test_token_f1(answer, gold, expected):
    assert token_f1(answer, gold) == pytest.approx(expected)


def test_normalisation_is_squads():
    assert normalize_text("  The  Cat's\thouse, a (big) one. ") == "cats house big one"


def test_mathematics_is_never_compared_by_f1():
    assert accuracy_of("math", "f1") is math_accuracy
    assert accuracy_of("math", "exact_match") is math_accuracy
    assert accuracy_of("qa", "exact_match") is exact_match_accuracy
