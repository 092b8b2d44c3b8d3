"""The environment by itself, and what `rllib-arpo try` says of it."""

import subprocess

import pytest
from till import Till


def test_paying_with_the_largest_coins_earns_most():
    till = Till()
    till.reset(amount=17)
    assert [till.pay(10), till.pay(5), till.pay(2)] == [f"{left} is left to pay." for left in (7, 2, 0)]
    assert till.get_reward() == 1.0
    till.reset(amount=2)
    assert [till.pay(1), till.get_reward(), till.pay(1)] == ["1 is left to pay.", 0.25, "0 is left to pay."]
    assert till.get_reward() == 0.75


def test_a_wrong_coin_is_what_the_model_reads():
    till = Till()
    till.reset(amount=3)
    for coin, message in {3: "There is no coin of 3", 5: "Only 3 is left to pay"}.items():
        with pytest.raises(ValueError, match=message):
            till.pay(coin)


def test_it_forks_by_copy_and_repeats():
    command = ["rllib-arpo", "try", "env.json", "--random", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "It forks by copy" in done
    assert "Repeated twice, it gives the same replies." in done
