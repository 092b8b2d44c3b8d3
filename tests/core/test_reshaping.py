"""The reshaped sampling distribution, by hand."""

import numpy as np
import pytest

from rllib_arpo.core.reshaping import NO_RESHAPING, Reshaping, reshaped_log_probs

#: Probabilities 0.5, 0.2, 0.2, 0.1; the first two logits are positive.
LOGITS = np.log([0.5, 0.2, 0.2, 0.1]) + np.log(6)


def probs(reshaping: Reshaping, prefix=(), temperature: float = 1.0) -> list[float]:
    return np.exp(reshaped_log_probs(LOGITS, np.array(prefix, int), temperature, reshaping)).round(6).tolist()


@pytest.mark.parametrize(
    ("reshaping", "expected"),
    [
        (NO_RESHAPING, [0.5, 0.2, 0.2, 0.1]),
        (Reshaping(top_k=1), [1.0, 0.0, 0.0, 0.0]),
        # Both of the equal tokens stay, as in vLLM.
        (Reshaping(top_k=2), [0.555556, 0.222222, 0.222222, 0.0]),
        (Reshaping(top_k=9), [0.5, 0.2, 0.2, 0.1]),
        (Reshaping(top_p=0.4), [1.0, 0.0, 0.0, 0.0]),
        (Reshaping(top_p=0.85), [0.555556, 0.222222, 0.222222, 0.0]),
        # top_p counts what top_k has left: 0.5 of 0.9 is enough for 0.55, and not for 0.5 of all.
        (Reshaping(top_k=3, top_p=0.55), [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_top_k_and_top_p(reshaping, expected):
    assert probs(reshaping) == expected


def test_the_temperature_comes_before_top_p():
    # At temperature 0.5: squares, 0.25 : 0.04 : 0.04 : 0.01.
    assert probs(NO_RESHAPING, temperature=0.5) == [0.735294, 0.117647, 0.117647, 0.029412]
    assert probs(Reshaping(top_p=0.7), temperature=0.5) == [1.0, 0.0, 0.0, 0.0]


def test_a_repeated_token_becomes_less_likely_whatever_the_sign_of_its_logit():
    # Logits ln 3, ln 1.2, ln 1.2, ln 0.6: a penalty of 2 makes ln 3 / 2 of the first and 2 ln 0.6 of the last.
    weights = np.array([3**0.5, 1.2, 1.2, 0.36])
    assert probs(Reshaping(repetition_penalty=2.0), prefix=(0, 3, 3)) == (weights / weights.sum()).round(6).tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_p": 0.0}, "top_p=0.0: must be above 0 and at most 1."),
        ({"top_p": 1.1}, "top_p=1.1: must be above 0 and at most 1."),
        ({"top_k": -1}, "top_k=-1: must be at least 0."),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0: must be a number > 0."),
        ({"repetition_penalty": float("inf")}, "repetition_penalty=inf: must be a number > 0."),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError) as error:
        Reshaping(**values)
    assert str(error.value) == message
