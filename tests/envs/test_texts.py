import pytest

from rllib_arpo.envs.support.texts import first_line, valid_unicode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("\ufeffKäse \U0001f600", "\ufeffKäse \U0001f600"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
    ],
)
def test_surrogates_that_stand_alone_are_replaced(text, expected):
    assert valid_unicode(text) == expected


def test_the_first_line_of_an_error():
    assert first_line(ValueError("a\nb")) == "a"
    assert first_line(ValueError("")) == "ValueError"
    assert first_line(ValueError("\n\n b.\nc")) == "b"
    assert first_line(ValueError(" \n")) == "ValueError"
